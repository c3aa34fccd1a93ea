"""Apps of the kinds that Flower's examples have: clients unchanged, one line of the server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from clipping import Clipping
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from torch import nn

from benchmarks.flower_apps import (
    App,
    HalfApp,
    LoraApp,
    NormedApp,
    SklearnApp,
    TabularApp,
    VectorApp,
    client_app,
)
from benchmarks.grids import InProcessGrid
from fedcraft.errors import InputError
from fedcraft.flower import Strategy
from fedcraft.flower import client_app as fedcraft_client_app
from fedcraft.flower.messages.arrays import WireFormat

APPS = (VectorApp, SklearnApp, TabularApp, NormedApp, HalfApp, LoraApp)


def start(app: App, strategy: FlowerStrategy, **options: Any) -> Result:
    grid = InProcessGrid(client_app(app), app.clients)
    return strategy.start(grid, app.record(app.initial()), num_rounds=app.rounds, **options)


def last_accuracy(result: Result) -> float:
    return float(
        result.evaluate_metrics_clientapp[max(result.evaluate_metrics_clientapp)]["accuracy"]
    )


@pytest.mark.parametrize("kind", APPS, ids=lambda kind: kind.name)
def test_an_app_keeps_its_clients_and_is_not_worse_than_with_fedavg(kind: type[App]) -> None:
    app = kind(seed=1)
    before, after = start(app, FedAvg()), start(app, Strategy())
    assert last_accuracy(after) >= last_accuracy(before) - 0.01
    for metrics in after.train_metrics_clientapp.values():
        assert (metrics["clients"], metrics["refused"]) == (app.clients, 0)
    sent, returned = app.record(app.initial()), after.arrays
    assert {n: (a.shape, a.dtype) for n, a in returned.items()} == {
        n: (a.shape, a.dtype) for n, a in sent.items()
    }


def test_statistics_of_batch_norm_are_averaged_and_not_geometry() -> None:
    app, strategy = NormedApp(seed=1), Strategy("craft")
    result = start(app, strategy)
    assert set(strategy.state.wire.buffers) == {"1.running_mean", "1.running_var"}
    assert abs(result.arrays["1.running_mean"].numpy()).max() > 0
    assert "1.num_batches_tracked" in result.arrays


def test_adapters_are_found_in_the_model_though_peft_leaves_out_their_name() -> None:
    app = LoraApp(seed=1)
    named, plain = Strategy("craft", model=app.network()), Strategy("craft")
    found = [start(app, strategy).arrays for strategy in (named, plain)]
    slots = [slot.name for slot in named.state.wire.layout.tensors]
    assert slots == list(app.record(app.initial()))
    assert all(".default" not in name for name in slots)
    for name in slots:
        assert np.allclose(found[0][name].numpy(), found[1][name].numpy(), atol=1e-6)


def test_fedcrafts_client_trains_adapters_of_which_only_the_adapters_travel() -> None:
    app = LoraApp(seed=1)
    tensors = [tuple(map(torch.as_tensor, part)) for part in app.train_parts]
    splits = [{"train": (x.float(), y), "test": (x.float(), y)} for x, y in tensors]
    client = fedcraft_client_app(
        lambda _: app.network(), lambda context: splits[context.node_config["partition-id"]]
    )
    strategy = Strategy("fedavg", model=app.network(), client_lr=0.5)
    first = app.record(app.initial())
    result = strategy.start(InProcessGrid(client, app.clients), first, 6, 5)
    assert list(result.arrays) == list(first)
    assert last_accuracy(result) > 0.3


class _TwoAdapters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lora_A = nn.ModuleDict({name: nn.Linear(3, 2, bias=False) for name in "ab"})


def test_an_array_that_two_parameters_could_be_is_an_error() -> None:
    record = ArrayRecord({"lora_A.weight": torch.zeros(2, 3)})
    with pytest.raises(InputError, match=r"more than one .* 'lora_A.weight'; freeze the others"):
        WireFormat.of(record, model=_TwoAdapters())


class OwnStart(Strategy):
    """Runs the rounds itself and keeps the best model, as a subclass of FedAvg may do."""

    def start(  # type: ignore[override]
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, **_: Any
    ) -> Result:
        result, arrays, self.best = Result(), initial_arrays, 0.0
        for number in range(1, num_rounds + 1):
            messages = self.configure_train(number, arrays, ConfigRecord(), grid)
            replies = grid.send_and_receive(messages, timeout=5)
            arrays, metrics = self.aggregate_train(number, replies)
            result.train_metrics_clientapp[number] = metrics
            messages = self.configure_evaluate(number, arrays, ConfigRecord(), grid)
            scores = self.aggregate_evaluate(number, grid.send_and_receive(messages, timeout=5))
            result.evaluate_metrics_clientapp[number] = scores
            self.best = max(self.best, float(scores["accuracy"]))
        result.arrays = arrays
        return result


def test_a_subclass_with_its_own_start_trains_and_evaluates_every_round() -> None:
    app = TabularApp(seed=1)
    strategy = OwnStart()
    result = start(app, strategy)
    assert list(result.evaluate_metrics_clientapp) == [1, 2, 3, 4, 5]
    assert strategy.best > 0.9


def test_clipping_on_the_server_reads_models_of_fedcrafts_clients() -> None:
    app = TabularApp(seed=1)
    data = [{"train": (torch.as_tensor(x).float(), torch.as_tensor(y))} for x, y in app.train_parts]
    client = fedcraft_client_app(
        lambda _: app.network(), lambda context: data[context.node_config["partition-id"]]
    )
    inner = Strategy("fedavg", fraction_evaluate=0.0, client_lr=0.5)
    grid = InProcessGrid(client, app.clients)
    Clipping(inner, longest=1e-2).start(grid, app.record(app.initial()), num_rounds=1)
    lengths = torch.linalg.vector_norm(inner.state.updates.sort(), dim=1)
    assert lengths == pytest.approx(torch.full((app.clients,), 1e-2), rel=1e-3)
