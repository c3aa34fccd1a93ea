"""The check notices an operator that misses targets which it can meet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.theory_study import EXACT, random_instance
from fedcraft.aggregators.craft import Craft
from fedcraft.errors import FedcraftError
from fedcraft.theory import LogisticProblem, Report, check
from fedcraft.theory.statements import claims


def run(problem: Any, **options: Any) -> Report:
    defaults = {"rounds": 12, "eta_l": 0.1, "eta_g": 0.2, "steps": (1, 3, 5)}
    return check(problem, **{**defaults, **options})


def scale_the_step(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    aggregate = Craft.aggregate

    def scaled(self: Craft, *args: Any, **options: Any) -> Any:
        step = aggregate(self, *args, **options)
        return replace(step, direction=factor * step.direction)

    monkeypatch.setattr(Craft, "aggregate", scaled)


@pytest.mark.parametrize("factor", [-1.0, 0.5])
@pytest.mark.parametrize("layers", [None, [4, 5]])
@pytest.mark.parametrize("constraint", ["equal", "at_least"])
def test_an_operator_that_misses_its_targets_is_reported(
    problem: LogisticProblem,
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    layers: list[int] | None,
    constraint: str,
) -> None:
    scale_the_step(monkeypatch, factor)
    report = run(problem, layers=layers, constraint=constraint)
    assert "alignment" in {statement.name for statement in report.violations}


@pytest.mark.parametrize("factor", [-1.0, 0.5])
@pytest.mark.parametrize("mode", EXACT)
def test_the_study_refuses_to_lose_an_exact_statement(
    monkeypatch: pytest.MonkeyPatch, mode: str, factor: float
) -> None:
    scale_the_step(monkeypatch, factor)
    with pytest.raises(FedcraftError, match="misses its targets"):
        random_instance(7, 0, max_rounds=5).run(mode)


def test_one_client_that_is_left_out_of_one_layer_is_noticed(problem: LogisticProblem) -> None:
    it = run(problem, layers=[4, 5]).measured
    unit = it.run.updates[3, 1, :4] / np.linalg.norm(it.run.updates[3, 1, :4])
    directions = it.run.directions.copy()
    directions[3, :4] -= 1e-3 * unit
    fake = replace(it, run=replace(it.run, directions=directions))
    broken = {claim.name: claim.judge(1e-9).broken for claim in claims(fake)}
    assert broken["alignment"] > 0


@pytest.mark.parametrize(
    "options",
    [{"clip": 0.2}, {"tau": 1.0}, {"released_code": True}],
    ids=lambda option: str(option),
)
def test_alignment_is_not_claimed_where_the_step_may_leave_the_targets(
    problem: LogisticProblem, options: dict[str, Any]
) -> None:
    assert "alignment" not in run(problem, **options)


def test_alignment_is_claimed_for_those_that_moved_and_only_where_they_are_independent(
    problem: LogisticProblem,
) -> None:
    idle = LogisticProblem((*problem.samples, np.zeros((7, 9))))
    assert run(idle, steps=2)["alignment"].places == 12 * 3
    assert run(problem, layers=[2, 7])["alignment"].places == 12 * 3
    twins = LogisticProblem((problem.samples[0], problem.samples[0]))
    assert "alignment" not in run(twins, steps=2)
