"""Runs CRAFT on a problem and compares every statement of appendix A with the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcraft.aggregators import aggregator
from fedcraft.errors import InputError, require
from fedcraft.theory.claim import Statement
from fedcraft.theory.constants import Constants
from fedcraft.theory.measured import Measured
from fedcraft.theory.problem import SmoothProblem, Vector
from fedcraft.theory.statements import claims
from fedcraft.theory.trajectory import train
from fedcraft.updates import Layout, as_layout, whole_number

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Report:
    """Every statement that applies to a run, with the numbers on both sides."""

    statements: tuple[Statement, ...]
    measured: Measured

    @property
    def constants(self) -> Constants:
        """The constants in the bounds; G and G^q are measured in the run."""
        return self.measured.constants

    @property
    def violations(self) -> tuple[Statement, ...]:
        """The statements that the run breaks: a wrong constant, operator or theorem."""
        return tuple(statement for statement in self.statements if not statement.holds)

    def __getitem__(self, name: str) -> Statement:
        for statement in self.statements:
            if statement.name == name:
                return statement
        known = ", ".join(statement.name for statement in self.statements)
        raise KeyError(f"{name!r} does not apply to this run; those that do: {known}")

    def __contains__(self, name: object) -> bool:
        return any(statement.name == name for statement in self.statements)

    def __str__(self) -> str:
        lines = [f"{'statement':<26}{'where':<16}{'left':>11}{'right':>11}{'ratio':>9}"]
        for s in self.statements:
            verdict = "" if s.holds else f"  BROKEN at {s.broken} of {s.places}"
            numbers = f"{s.left:>11.3g}{s.right:>11.3g}{s.ratio:>9.2g}"
            lines.append(f"{s.name:<26}{s.where:<16}{numbers}{verdict}")
        places = sum(s.places for s in self.statements)
        telling = sum(s.nontrivial for s in self.statements)
        lines.append(f"{telling} of {places} comparisons: left side not 0, right side finite")
        return "\n".join(lines)


def check(
    problem: SmoothProblem,
    *,
    rounds: int,
    eta_l: float,
    eta_g: float,
    steps: int | Sequence[int] = 1,
    layers: Layout | Sequence[int] | None = None,
    start: Vector | None = None,
    tolerance: float = 1e-9,
    **craft: Any,
) -> Report:
    """Train with CRAFT under full participation and compare both sides of every statement.

    ``steps`` are the K_i; ``layers`` a Layout or sizes (whole vector if left out); ``start`` is
    theta_0 (zero if left out); ``craft`` goes to ``aggregator("craft")``, whose eps and tau are 0
    and whose clip is None here, as in the paper's exact setting. G is measured. ``tolerance`` is
    for rounding only.

    >>> from fedcraft.theory import random_logistic
    >>> problem = random_logistic(np.random.default_rng(0), [20, 30, 10], dimension=8)
    >>> report = check(problem, rounds=20, eta_l=0.05, eta_g=0.1, steps=[1, 3, 5])
    >>> report.violations
    ()
    """
    _check_positive(rounds=rounds, eta_l=eta_l, eta_g=eta_g, gradient_bound=problem.gradient_bound)
    _check_weights(problem.weights)
    counts = _counts(steps, len(problem.weights))
    layout = as_layout(layers, problem.dimension)
    first = np.zeros(problem.dimension) if start is None else start
    shape = (problem.dimension,)
    require(np.shape(first) == shape, "start", f"an array of shape {shape}", np.shape(first))
    options = {"eps": 0.0, "tau": 0.0, "clip": None, **craft}
    run = train(
        problem,
        aggregator("craft", **options),
        rounds=whole_number("rounds", rounds),
        eta_l=eta_l,
        eta_g=eta_g,
        steps=counts,
        layout=layout,
        start=first,
    )
    targets = _targets(options.get("target", "data"), problem)
    measured = Measured(problem, run, layout, counts, targets, eta_l, eta_g, _exact(options))
    judged = tuple(claim.judge(tolerance) for claim in claims(measured))
    return Report(judged, measured)


def _counts(steps: int | Sequence[int], clients: int) -> list[int]:
    given = [steps] * clients if np.ndim(steps) == 0 else list(np.asarray(steps))
    if len(given) != clients:
        raise InputError(f"steps: expected one for each of {clients} clients, found {len(given)}")
    return [whole_number("steps", count) for count in given]


def _exact(options: dict[str, Any]) -> bool:
    """Tell whether the options let the step meet its targets; eps only exceeds them."""
    return options["tau"] == 0 and not (options.get("clip") or options.get("released_code"))


def _targets(kind: object, problem: SmoothProblem) -> Vector:
    if kind == "data":
        return problem.weights
    if kind == "uniform":
        return np.full_like(problem.weights, 1 / len(problem.weights))
    raise InputError(f"target: expected 'data' or 'uniform' for the theory, found {kind!r}")


def _check_positive(**numbers: Any) -> None:
    for name, number in numbers.items():
        real = isinstance(number, int | float | np.integer | np.floating)
        require(real and bool(0 < number < np.inf), name, "a positive number", number)


def _check_weights(weights: Any) -> None:
    fine = isinstance(weights, np.ndarray) and weights.ndim == 1 and bool((weights > 0).all())
    fine = fine and abs(float(np.sum(weights)) - 1) <= _ROUNDING
    require(fine, "weights", "an array of positive numbers that sum to one", weights)
