"""When a run ends before its last round, and what it needs for that."""

from __future__ import annotations

import pytest

from fedcraft.data import federate, load
from fedcraft.engine import run
from fedcraft.errors import ConfigError, DataError
from fedcraft.methods import method


def test_a_run_stops_at_its_target(federation, model, settings):
    ended = run(
        method("craft"),
        federation,
        model,
        settings(rounds=60, evaluate_every=2, target_accuracy=0.3),
    )

    assert ended.state == "stopped"
    assert ended.reason.startswith("target")
    assert ended.evaluation["mean"] >= 0.3
    assert ended.round < 60


def test_a_run_stops_when_it_gets_no_better(federation, model, settings):
    still = settings(rounds=50, client_lr=1e-12, server_lr=1e-12, evaluate_every=1, patience=3)
    ended = run(method("fedavg"), federation, model, still)

    assert ended.reason.startswith("patience")
    assert ended.round == 4


def test_a_run_stops_when_its_time_is_over_and_is_evaluated(federation, model, settings):
    ended = run(
        method("fedavg"),
        federation,
        model,
        settings(rounds=10**6, evaluate_every=0, max_minutes=0.005),
    )

    assert ended.reason.startswith("wall time")
    assert ended.metrics[-1]["evaluation"]["mean"] > 0


@pytest.mark.parametrize("rule", [{"target_accuracy": 0.5}, {"patience": 2}])
def test_an_end_that_hangs_on_test_data_needs_some(rule, untested, model, settings):
    with pytest.raises(ConfigError, match=rf"{next(iter(rule))}: .* no client has test samples"):
        run(method("fedavg"), untested, model, settings(**rule))


def test_without_test_data_a_run_has_no_test_scores_and_says_so(untested, model, settings):
    result = run(method("fedavg"), untested, model, settings(rounds=1))

    assert result.clients("train")["client"].tolist() == list(range(20))
    with pytest.raises(DataError, match=r"split: .*\['train'\], found 'test'"):
        result.clients()


@pytest.fixture(scope="module")
def untested():
    return federate(load("digits"), "iid", clients=20, seed=1, train_fraction=1.0)
