"""Look-ahead, averaged models and rate schedules, for every method and over every resume."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedcraft.aggregators import Aggregator, Outcome
from fedcraft.engine import Callback, Interrupted, run
from fedcraft.engine.model_average import ModelAverage
from fedcraft.methods import Part, method
from fedcraft.server_optimizers import ServerOptimizer


class _Stop(Callback):
    def on_round(self, record):
        if record["round"] == 4:
            raise RuntimeError("the power is gone")


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_a_resumed_run_has_the_same_average_and_look_ahead(
    executor, federation, model, settings, tmp_path, same_run
):
    choice = settings(rounds=7, executor=executor, workers=2, model_average="tail")
    auto = method("craft-auto")
    run(auto, federation, model, choice, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="power"):
        run(auto, federation, model, choice, tmp_path / "torn", callbacks=[_Stop()])
    result = run(auto, federation, model, choice, tmp_path / "torn", resume=True)

    same_run(tmp_path / "torn", tmp_path / "whole")
    assert result.metrics[-1]["evaluation_last"]["mean"] != result.evaluation["mean"]


class _Broadcasts(Aggregator):
    """FedAvg that keeps the model its clients started from and the step it made of them."""

    seen: ClassVar[list[tuple[torch.Tensor, torch.Tensor]]] = []

    def direction(self, cohort):
        average = cohort.combine(cohort.weights)
        self.seen.append((self.context.theta.clone(), average.clone()))
        return Outcome(average)


def test_clients_start_ahead_and_the_model_is_behind_them(federation, model, settings):
    _Broadcasts.seen = []
    rule = method("fedavg", aggregator=Part(_Broadcasts))
    result = run(rule, federation, model, settings(rounds=3, server_lr=0.5, look_ahead=2.0))

    starts, steps = zip(*_Broadcasts.seen, strict=True)
    x = starts[0]
    for t in range(3):
        if t:
            torch.testing.assert_close(starts[t], x - 2.0 * 0.5 * steps[t - 1])
        x = x - 0.5 * steps[t]
    torch.testing.assert_close(result.vector, x)


def test_a_rule_sees_the_round_and_the_rates(federation, model, settings):
    found = []

    class Watching(Aggregator):
        def direction(self, cohort):
            found.append((self.context.index, self.context.rounds, self.context.server_lr))
            return Outcome(cohort.combine(cohort.weights))

    rates = settings(rounds=4, server_lr=0.5, server_lr_schedule="linear")
    run(method("fedavg", aggregator=Part(Watching)), federation, model, rates)
    assert found == [(t, 4, 0.5 * (1 - t / 4)) for t in range(4)]


def test_the_schedule_scales_the_step(federation, model, settings):
    fedavg, cosine = method("fedavg"), settings(rounds=2, server_lr_schedule="cosine")
    plain = run(fedavg, federation, model, settings(rounds=2))
    falling = run(fedavg, federation, model, cosine)
    norms = [row["update_norm"] for row in falling.metrics]
    assert norms[0] == plain.metrics[0]["update_norm"]
    assert norms[1] == pytest.approx(plain.metrics[1]["update_norm"] / 2)


class _Shifted(ServerOptimizer):
    """Plain steps, but another model is evaluated."""

    def displacement(self, direction):
        return self.lr * direction

    def evaluated(self, theta):
        return theta + 1


def test_an_optimiser_says_which_model_is_evaluated(federation, model, settings):
    plain = run(method("fedavg"), federation, model, settings(rounds=1))
    shifted = run(method("fedavg", server=Part(_Shifted)), federation, model, settings(rounds=1))
    torch.testing.assert_close(shifted.vector, plain.vector + 1)


def test_averages_weigh_iterates_as_they_say():
    thetas = [torch.tensor([float(n)], dtype=torch.float64) for n in range(1, 31)]
    found = {}
    for kind in ("mean", "ema", "tail"):
        average = ModelAverage(kind)
        for theta in thetas:
            average.update(theta)
        found[kind] = float(average.mean)
    weights = 0.98 ** np.arange(29, -1, -1)
    assert found["mean"] == pytest.approx(15.5)
    assert found["ema"] == pytest.approx(np.average(np.arange(1, 31), weights=weights))
    # Polynomial decay: iterate i weighs like i (i+1) ... (i+7): the window grows with the rounds.
    tail = np.array([math.prod(range(i, i + 8)) for i in range(1, 31)], dtype=float)
    assert found["tail"] == pytest.approx(np.average(np.arange(1, 31), weights=tail))


def test_an_interrupted_run_is_not_swallowed_by_except_exception():
    assert issubclass(Interrupted, KeyboardInterrupt)
    assert not issubclass(Interrupted, Exception)
