"""Bad input is refused by the name of the argument, not judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedcraft.errors import InputError
from fedcraft.theory import LogisticProblem, Report, check


def run(problem: Any, **options: Any) -> Report:
    defaults = {"rounds": 12, "eta_l": 0.1, "eta_g": 0.2, "steps": (1, 3, 5)}
    return check(problem, **{**defaults, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds"),
        ({"eta_l": 0.0}, "eta_l"),
        ({"eta_g": float("nan")}, "eta_g"),
        ({"steps": (1, 2)}, "steps: expected one for each of 3"),
        ({"steps": (1, 2, 0)}, "steps: expected at least 1"),
        ({"steps": 1.5}, "steps: expected whole numbers"),
        ({"steps": (1, 2, 2.5)}, "steps: expected whole numbers"),
        ({"rounds": 2.5}, "rounds: expected whole numbers"),
        ({"eta_l": "fast"}, "eta_l: expected a positive number"),
        ({"start": np.zeros(8)}, r"start: expected an array of shape \(9,\), found \(8,\)"),
        ({"layers": [4, 4]}, "layers"),
        ({"target": lambda cohort: cohort.weights}, "target"),
    ],
)
def test_impossible_settings_are_refused(
    problem: LogisticProblem, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run(problem, **options)


@pytest.mark.parametrize("steps", [2, np.int64(2), [2, 2, 2], np.array([2, 2, 2])])
def test_steps_may_be_any_kind_of_whole_number(problem: LogisticProblem, steps: Any) -> None:
    assert run(problem, rounds=1, steps=steps).measured.steps == [2, 2, 2]


@pytest.mark.parametrize(
    "weights",
    [
        np.array([1.0, 1.0, 1.0]),
        np.array([0.5, 0.6, -0.1]),
        np.array([0.5, 0.5, np.nan]),
        [0.5, 0.5],
    ],
    ids=str,
)
def test_weights_that_are_not_weights_are_refused(problem: LogisticProblem, weights: Any) -> None:
    problem.__dict__["weights"] = weights  # a cached property
    with pytest.raises(InputError, match="weights: expected an array of positive numbers that sum"):
        run(problem)


def test_a_gradient_bound_of_zero_is_refused(problem: LogisticProblem) -> None:
    problem.__dict__["gradient_bound"] = 0.0
    with pytest.raises(InputError, match="gradient_bound"):
        run(problem)
