"""Strategy over a grid in this process: the simulator's numbers, whatever the nodes are called."""

from __future__ import annotations

import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import small
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from benchmarks.grids import InProcessGrid
from fedcraft.errors import InputError, StateError
from fedcraft.flower import Strategy
from fedcraft.methods import methods
from fedcraft.report import load_runs


# FedBN is for models with norm layers, and this one has none; FedBuff needs the virtual clock.
@pytest.mark.parametrize(
    "name", [row.name for row in methods() if row.name not in ("fedbn", "fedbuff")]
)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_every_method_ends_with_the_simulators_bits(name: str, share: float) -> None:
    trained = small.train(name, rounds=2, fraction_train=share)
    expected = small.simulate(name, rounds=2, clients_per_round=int(small.CLIENTS * share))
    assert torch.equal(small.theta(trained), expected)


def test_node_ids_and_the_order_of_replies_do_not_matter() -> None:
    found = [
        small.theta(small.train(grid=InProcessGrid(small.app(), small.CLIENTS, node_ids=ids)))
        for ids in ([9, 2, 7, 4], [10**18, 3, 2**61, 8], [2**64 - 1, 3, 2**63, 2**63 - 1])
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", ["craft", "fedmdfg", "fedfv", "afl"])
def test_ids_of_64_bits_stay_as_they_are(name: str, tmp_path: Path) -> None:
    """In the tables, certificates, what rules remember, and through a checkpoint."""
    ids = [2**63 - 1, 2**63, 2**64 - 1, 5]  # as floats the first two are one

    def going_to(rounds: int) -> Strategy:
        app = small.app(name)
        grid = InProcessGrid(app, small.CLIENTS, node_ids=ids, fault=small.nameless)
        return small.train(name, rounds=rounds, grid=grid, run_dir=tmp_path, evaluate_every=1)

    going_to(1)
    trained = going_to(2)
    assert trained.certificate is not None
    assert trained.certificate.client_ids == tuple(sorted(ids))
    assert trained.state.last == dict.fromkeys(ids, 2)
    rows = [line.split(",") for line in (tmp_path / "clients.csv").read_text().splitlines()[1:]]
    for part in ("train", "test"):
        assert {row[1] for row in rows if row[2] == part} == set(map(str, ids))
    (found,) = load_runs(tmp_path)
    assert list(found.accuracies()) == sorted(ids)


def test_the_certificate_of_the_last_round_names_clients_not_nodes() -> None:
    certificate = small.train().certificate
    assert certificate is not None
    assert certificate.client_ids == (0, 1, 2, 3)


def test_a_server_without_the_model_groups_layers_by_name() -> None:
    named = small.train(model=None)
    assert named.state.wire.layout.names == ("1", "3")
    assert torch.equal(small.theta(named), small.theta(small.train()))


def test_models_may_be_sent_instead_of_updates_at_the_price_of_one_rounding() -> None:
    sent = small.theta(small.train("fedavg", reply="model"))
    exact = small.theta(small.train("fedavg"))
    assert torch.allclose(sent, exact, atol=1e-6)


def test_fedcraft_clients_serve_flowers_own_strategy() -> None:
    grid = InProcessGrid(small.app("fedavg", lr=small.LR, seed=small.SEED), small.CLIENTS)
    ours = small.theta(small.train("fedavg", rounds=1))
    theirs = FedAvg().start(grid, small.arrays(), num_rounds=1)
    assert torch.allclose(small.vector_of(theirs.arrays), ours, atol=1e-6)
    assert theirs.evaluate_metrics_clientapp[1]["accuracy"] > 0


def test_weights_by_no_key_count_all_clients_alike() -> None:
    equal, sized = (
        small.train("fedavg", rounds=1, weighted_by_key=k) for k in (None, "num-examples")
    )
    rows = equal.state.updates.sort()
    start = small.vector_of(small.arrays())
    assert torch.allclose(small.theta(equal), start - rows.mean(0), atol=1e-6)
    assert not torch.allclose(small.theta(sized), small.theta(equal), atol=1e-6)


def test_what_train_config_says_wins() -> None:
    slow = small.strategy("fedavg")
    config = ConfigRecord({"lr": 1e-9})
    grid = InProcessGrid(small.app("fedavg"), small.CLIENTS)
    slow.start(grid, small.arrays(), 1, 5, train_config=config)
    assert torch.allclose(small.theta(slow), small.vector_of(small.arrays()), atol=1e-6)


def test_the_settings_on_record_are_those_that_were_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = small.strategy("fedavg", run_dir=tmp_path)
    config = ConfigRecord({"lr": 0.125, "local-epochs": 2, "batch-size": 7, "seed": 9})
    grid = InProcessGrid(small.app("fedavg"), small.CLIENTS)
    chosen.start(grid, small.arrays(), 3, 5, train_config=config)
    written = tomllib.loads((tmp_path / "config.toml").read_text())
    expected = {"client_lr": 0.125, "lr_decay": 1.0, "local_epochs": 2, "batch_size": 7, "seed": 9}
    assert {name: written[name] for name in expected} == expected
    assert written["cohort_seed"] == small.SEED
    assert {row["client_lr"] for row in small.tables(tmp_path)["metrics"]} == {0.125}
    assert "Rates: clients 0.125, server 1" in caplog.text


def _my_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels, label_smoothing=0.1)


def test_options_that_are_not_text_are_recorded_by_name(tmp_path: Path) -> None:
    """And a run with them can be saved, resumed, and told from another."""
    config = ConfigRecord({"lr": 0.1, "keys": [b"one", b"two"], "key": b"one"})

    def run(rounds: int, loss: object) -> Strategy:
        chosen = small.strategy("craft", local={"loss": loss}, run_dir=tmp_path)
        grid = InProcessGrid(small.app(), small.CLIENTS)
        chosen.start(grid, small.arrays(), rounds, 5, train_config=config)
        return chosen

    run(1, _my_loss)
    written = tomllib.loads((tmp_path / "config.toml").read_text())
    assert written["local"]["loss"] == f"{__name__}:_my_loss"
    assert written["train_config"] == {"lr": 0.1, "keys": []}
    run(2, _my_loss)
    assert len(small.tables(tmp_path)["metrics"]) == 2
    with pytest.raises(StateError, match="holds a run with local ="):
        run(3, partial(nn.functional.cross_entropy, label_smoothing=0.2))


def _statistics_app(values: dict[str, np.ndarray]) -> ClientApp:
    """Clients whose model has a BatchNorm: they send back other statistics and counters."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: object) -> Message:
        client = context.node_config["partition-id"]
        sent = {name: Array(array.numpy()) for name, array in message.content["arrays"].items()}
        sent |= {name: Array(np.asarray(value * (client + 1))) for name, value in values.items()}
        metrics = MetricRecord({"num-examples": 1, "client-id": client})
        content = RecordDict({"arrays": ArrayRecord(sent), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


@pytest.mark.parametrize(("policy", "expected"), [("mean", 1.5), ("keep", 0.0)])
@pytest.mark.parametrize("with_model", [True, False])
def test_buffers_follow_their_policy_and_counters_stay(
    policy: str, expected: float, with_model: bool
) -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    app = _statistics_app(
        {
            "1.running_mean": np.ones(2, np.float32),
            "1.num_batches_tracked": np.asarray(5, np.int64),
        }
    )
    chosen = Strategy("fedavg", model=module if with_model else None, buffers=policy)
    chosen.fraction_evaluate = 0
    result = chosen.start(InProcessGrid(app, 2), ArrayRecord(module.state_dict()), 1, 5)
    assert result.arrays["1.running_mean"].numpy() == pytest.approx(expected)
    assert result.arrays["1.num_batches_tracked"].numpy() == 0
    assert chosen.state.wire.layout.dimension == 3 * 2 + 2 + 2 + 2


def test_frozen_parameters_are_not_geometry_and_stay() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    module[0].weight.requires_grad_(False)
    app = _statistics_app({"0.weight": np.ones((2, 3), np.float32)})
    chosen = Strategy("fedavg", model=module, fraction_evaluate=0)
    result = chosen.start(InProcessGrid(app, 2), ArrayRecord(module.state_dict()), 1, 5)
    assert chosen.state.wire.layout.dimension == 2 + 4 + 2
    assert np.array_equal(result.arrays["0.weight"].numpy(), module[0].weight.numpy())


def test_aggregating_before_anything_was_sent_is_an_error() -> None:
    with pytest.raises(InputError, match="call configure_train before"):
        small.strategy().aggregate_train(1, [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction_train": 1.5}, "fraction_train: expected a share in"),
        ({"min_clients": 0}, "min_clients: expected a whole number of at least 1, found 0"),
        ({"min_train_nodes": -1}, "min_train_nodes: expected a whole number of at least 0"),
        ({"min_available_nodes": 1.5}, "min_available_nodes: expected a whole number"),
        ({"max_update_norm": -1}, "max_update_norm: expected a number above 0 or None, found -1"),
        ({"max_update_norm": float("nan")}, "max_update_norm: expected a number above 0"),
        ({"method": 0.5}, r"method: expected a name or a Method, found 0\.5"),
        ({"reply": "gradient"}, "reply: expected 'update' or 'model'"),
        ({"method": "krafft"}, "Did you mean 'craft'"),
        ({"method": "fedbuff"}, "method: fedbuff needs the virtual clock"),
        ({"bach_size": 20}, "bach_size: unknown key; expected one of lr_decay"),
        ({"rounds": 20}, "rounds: unknown key; expected one of lr_decay"),
    ],
)
def test_wrong_arguments_say_what_was_expected(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Strategy(**options)


def test_positional_arguments_of_flowers_fedavg_are_refused_with_the_way_to_give_them() -> None:
    with pytest.raises(InputError, match=r"found 0\.5, 0\.25; give .* as in fraction_train=0\.5"):
        Strategy(0.5, 0.25)


def test_clipping_on_the_client_by_flowers_own_mod_takes_effect() -> None:
    """On training alone: an evaluation's reply has no arrays for the mod to clip."""
    clip = LocalDpMod(clipping_norm=1e-3, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    grid = InProcessGrid(small.app("fedavg", mods=[clip]), small.CLIENTS)
    trained = small.train("fedavg", rounds=1, grid=grid, reply="model", evaluate_every=1)
    assert len(trained.state.scores) == small.CLIENTS
    lengths = torch.linalg.vector_norm(trained.state.updates.sort(), dim=1)
    assert lengths == pytest.approx(torch.full((small.CLIENTS,), 1e-3), rel=1e-2)
