"""A whole run of the released program, repeated by ours: four rounds, end to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedcraft.data import Federation, Ragged, from_arrays
from fedcraft.engine import Callback, Settings, run
from fedcraft.engine.sampling import SampledClients
from fedcraft.local import ClientData
from fedcraft.methods import method
from fedcraft.models import build

_TOLERANCE = 1e-5


@dataclass(frozen=True, eq=False)
class _Prescribed(ClientData):
    """A client that sees its samples in the order of the reference run."""

    order: np.ndarray

    def epoch(self, draw):
        return self.tensors.gather(self.order)


class _Scores(Callback):
    def __init__(self):
        self.accuracies = []

    def on_evaluate(self, round_number, scores):
        self.accuracies.append(scores["test"].accuracy)


def _federation(case):
    dataset = from_arrays(case["X"], case["Y"], classes=case["n_classes"])
    parts = [Ragged(case[f"{s}_idx"], case[f"{s}_ptr"]) for s in ("train", "test")]
    empty = Ragged(np.empty(0, np.int64), np.zeros(len(parts[0]) + 1, np.int64))
    return Federation(dataset, *parts, empty)


def _orders(case, federation):
    """Return the order in which each client drew its samples in each round."""
    orders = {}
    for index, played in enumerate(case.rounds):
        sizes = [len(federation.rows(int(client))) for client in played["ids"]]
        cuts = np.cumsum(sizes)[:-1]
        for client, order in zip(
            played["ids"], np.split(played["sample_order"], cuts), strict=True
        ):
            orders[index, int(client)] = order
    return orders


@pytest.mark.parametrize(("executor", "workers"), [("serial", 1), ("processes", 2)])
def test_a_run_of_the_released_program_is_repeated(golden, relative_error, executor, workers):
    case = golden("craft_e2e-a.npz")
    rounds, federation = list(case.rounds), _federation(case)
    orders = _orders(case, federation)
    model = build("mlp", input_shape=(6,), classes=3, hidden=(5, 5))
    torch.nn.utils.vector_to_parameters(torch.from_numpy(case["theta0"]), model.parameters())
    scores = _Scores()
    settings = Settings(
        rounds=len(rounds),
        clients_per_round=3,
        client_lr=case["lr"],
        server_lr=case["server_lr"],
        lr_decay=case["lr_decay"],
        batch_size=case["bs"],
        evaluate_every=1,
        executor=executor,
        workers=workers,
        start_method="fork",  # the prescribed orders are a function of this test's own
    )

    result = run(
        method("craft", aggregator={"released_code": True}),
        federation,
        model,
        settings,
        callbacks=[scores],
        sampler=lambda s, n, t: SampledClients(np.sort(rounds[t]["ids"]), np.empty(0, np.int64)),
        client_data=lambda tensors, rows, client, t: _Prescribed(tensors, rows, orders[t, client]),
    )

    assert relative_error(result.vector, rounds[-1]["theta"]) < _TOLERANCE
    for row, accuracy, expected in zip(result.metrics, scores.accuracies, rounds, strict=True):
        assert row["client_lr"] == pytest.approx(expected["lr"], rel=1e-12)
        assert row["evaluation"]["train_loss"] == pytest.approx(expected["loss"], rel=_TOLERANCE)
        assert accuracy == pytest.approx(expected["client_acc"], abs=1e-6)
