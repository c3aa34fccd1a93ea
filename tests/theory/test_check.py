"""The check runs the real operator, passes where the theory holds, and fails where it does not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from benchmarks.theory_study import MODES, random_instance
from fedcraft.theory import LogisticProblem, Report, check, layerwise_bound, random_logistic
from fedcraft.theory.statements import claims
from fedcraft.theory.trajectory import local_work
from fedcraft.updates import Layout

EXACT = {"common_descent", "linear_common_descent", "convergence", "average_norm"}


def run(problem: Any, **options: Any) -> Report:
    defaults = {"rounds": 12, "eta_l": 0.1, "eta_g": 0.2, "steps": (1, 3, 5)}
    return check(problem, **{**defaults, **options})


def names(report: Report) -> set[str]:
    return {statement.name for statement in report.statements}


@pytest.mark.parametrize("mode", MODES)
def test_no_bound_is_broken_on_random_problems(mode: str) -> None:
    for index in range(25):
        report = random_instance(7, index, max_rounds=12).run(mode)
        assert report.violations == (), f"instance {index}\n{report}"


def test_an_instance_is_its_seed_and_index() -> None:
    first, second = (random_instance(7, 3, max_rounds=8).run("whole") for _ in range(2))
    assert first.statements == second.statements
    assert random_instance(7, 3) != random_instance(7, 4)


def test_the_step_is_the_papers_projection(problem: LogisticProblem) -> None:
    trajectory = run(problem, rounds=2, steps=2).measured.run
    reference = np.zeros(9)
    for updates, direction in zip(trajectory.updates, trajectory.directions, strict=True):
        units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
        gap = problem.weights - units @ reference
        expected = reference + np.linalg.pinv(units) @ gap
        assert direction == pytest.approx(expected, rel=1e-9, abs=1e-12)
        reference = direction / np.linalg.norm(direction)


def test_local_work_is_gradient_descent(problem: LogisticProblem) -> None:
    theta = np.random.default_rng(4).standard_normal(9)
    work = local_work(problem, 1, theta, 0.3, 4, Layout.whole(9))
    local = theta.copy()
    for _ in range(4):
        local = local - 0.3 * problem.gradient(1, local)
    assert work.update == pytest.approx(theta - local)
    assert 0 < work.curviest <= problem.smoothness
    assert work.block_curviest == pytest.approx([work.curviest])


def claim_of(report: Report, name: str) -> Any:
    (claim,) = (claim for claim in claims(report.measured) if claim.name == name)
    return claim


def test_the_theorems_left_side_is_the_mean_of_the_squares(problem: LogisticProblem) -> None:
    report = run(problem, layers=[4, 5])
    norms = np.linalg.norm(report.measured.gradient, axis=1)
    assert np.ptp(norms) > 0.1 * norms.mean()  # so that the squared mean is another number
    for name in ("convergence", "layerwise"):
        assert report[name].left == pytest.approx(np.mean(norms**2), rel=1e-12)
    assert report["average_norm"].left == pytest.approx(np.mean(norms), rel=1e-12)


def test_drift_is_held_against_its_lemma_with_the_smoothness_of_the_layer(
    problem: LogisticProblem,
) -> None:
    report = run(problem, layers=[4, 5])
    steps, known = np.array([1, 3, 5]), report.constants
    limits = known.gradient_bound / 2 * 0.1**2 * steps * (steps - 1)
    whole, layers = claim_of(report, "drift"), claim_of(report, "block_drift")
    assert whole.right == pytest.approx(known.smoothness * limits)
    assert min(known.smoothness / np.array(known.block_smoothness)) > 1.05
    assert layers.right == pytest.approx(np.outer(limits, known.block_smoothness))


def test_residuals_by_layer_have_the_smoothness_of_the_layer(problem: LogisticProblem) -> None:
    report = run(problem, layers=[2, 7])
    it, known = report.measured, report.constants
    missed = np.abs(it.block_deviations) @ problem.weights  # (T, Q)
    reach = known.gradient_bound * (1 + np.array(known.block_smoothness) / 2 * 0.1 * 4)
    bound = layerwise_bound(
        known,
        float(it.run.values[0]),
        eta_l=0.1,
        eta_g=0.2,
        rounds=12,
        mean_residual=float((missed @ reach).mean()),
    )
    assert report["layer_residual"].right == pytest.approx(bound.total)


def test_exact_statements_apply_to_the_whole_vector(problem: LogisticProblem) -> None:
    report = run(problem)
    assert names(report) >= EXACT
    assert abs(report.measured.deviations).max() < 1e-12
    assert report["residual"].right == pytest.approx(report["convergence"].right)


def test_layers_that_meet_their_targets_obey_the_whole_vectors_theorem_too(
    problem: LogisticProblem,
) -> None:
    report = run(problem, layers=[4, 5])
    assert EXACT | {"layerwise", "block_drift"} <= names(report)
    assert report.measured.deviations.min() > 0


def test_clipping_leaves_only_the_residual_corollary(problem: LogisticProblem) -> None:
    report = run(problem, clip=0.2)
    assert not EXACT & names(report)
    assert report["residual"].holds
    assert report["residual"].right > 0
    assert report.constants.update_bound == pytest.approx(0.2)
    with pytest.raises(KeyError, match="does not apply"):
        report["convergence"]


def test_a_layer_narrower_than_the_clients_gets_a_residual(problem: LogisticProblem) -> None:
    report = run(problem, layers=[2, 7])
    assert "layer_residual" in report
    assert "layerwise" not in report
    assert report.violations == ()


def test_at_least_with_uniform_targets_is_covered(problem: LogisticProblem) -> None:
    report = run(problem, constraint="at_least", target="uniform")
    assert names(report) >= EXACT
    assert report.constants.rho_min == pytest.approx(1 / 3)
    assert report.violations == ()


def test_a_client_that_never_moves_is_covered(problem: LogisticProblem) -> None:
    idle = LogisticProblem((*problem.samples, np.zeros((7, 9))))
    report = run(idle, steps=(1, 3, 5, 2))
    assert (report.measured.run.updates[:, 3] == 0).all()
    assert names(report) >= EXACT
    assert report.violations == ()


def test_the_stabiliser_eps_only_raises_alignment(problem: LogisticProblem) -> None:
    report = run(problem, eps=1e-2)
    assert report.measured.deviations.min() > 0
    assert report.violations == ()


def test_bounded_steps_keep_a_disputed_gradient_from_vanishing() -> None:
    opposed = random_logistic(np.random.default_rng(1), [30, 30], 4, heterogeneity=2.0)
    report = run(opposed, rounds=60, steps=1)
    assert report["stationarity_floor"].informative == 1
    assert 0 < report["stationarity_floor"].ratio <= 1


@dataclass(frozen=True)
class Lying(LogisticProblem):
    """A problem that understates one of its constants."""

    lie: str = ""
    factor: float = 100

    @cached_property
    def smoothness(self) -> float:
        return self.block_smoothness(slice(0, 9)) / (self.factor if self.lie == "smoothness" else 1)

    @cached_property
    def gradient_bound(self) -> float:
        honest = LogisticProblem(self.samples).gradient_bound
        return honest / (self.factor if self.lie == "gradient_bound" else 1)

    @property
    def lower_bound(self) -> float:
        return 10.0 if self.lie == "lower_bound" else 0.0

    def block_smoothness(self, block: slice) -> float:
        factor = self.factor if self.lie == "block_smoothness" and block != slice(0, 9) else 1
        return super().block_smoothness(block) / factor


@pytest.mark.parametrize(
    ("lie", "broken"),
    [
        ("", set()),
        ("smoothness", {"smoothness", "drift", "one_step_descent"}),
        ("gradient_bound", {"gradient_bound", "drift", "weighted_gradient_squared"}),
        ("lower_bound", {"lower_bound", "convergence", "average_norm"}),
        ("block_smoothness", {"block_smoothness", "block_drift"}),
    ],
)
def test_a_wrong_constant_is_reported(problem: LogisticProblem, lie: str, broken: set[str]) -> None:
    layers = [4, 5] if lie == "block_smoothness" else None
    report = run(Lying(problem.samples, lie=lie), layers=layers)
    found = {statement.name for statement in report.violations}
    assert broken <= found
    assert bool(found) == bool(lie)
    assert ("BROKEN" in str(report)) == bool(lie)


@pytest.mark.parametrize(
    ("lie", "broken"),
    [
        ("smoothness", {"smoothness", "one_step_descent"}),
        ("block_smoothness", {"block_smoothness"}),
    ],
)
@pytest.mark.parametrize("rounds", [1, 12])
def test_one_local_step_tests_the_smoothness_too(
    problem: LogisticProblem, lie: str, broken: set[str], rounds: int
) -> None:
    lying = Lying(problem.samples, lie=lie, factor=1e9)
    report = run(lying, steps=1, rounds=rounds, layers=[4, 5])
    assert broken <= {statement.name for statement in report.violations}
    assert run(problem, steps=1, rounds=rounds, layers=[4, 5]).violations == ()


def test_a_tight_smoothness_is_nearly_used_up_by_one_step() -> None:
    report = run(Bowls(), steps=1, eta_g=0.1)
    assert report["one_step_descent"].ratio == pytest.approx(1)
    assert report["smoothness"].ratio == pytest.approx(1)
    assert report.violations == ()


def test_a_step_that_is_not_crafts_breaks_the_descent_lemmas(problem: LogisticProblem) -> None:
    it = run(problem, steps=1).measured
    backwards = replace(it.run, directions=-it.run.directions)
    fake = replace(it, run=backwards)
    assert not {claim.name for claim in claims(fake)} & EXACT
    fake.__dict__["deviations"] = np.zeros_like(it.deviations)  # claim that the targets were met
    broken = {claim.name for claim in claims(fake) if not claim.judge(1e-9).holds}
    assert {"common_descent", "linear_common_descent"} <= broken


class Bowls:
    """f_i = ||theta - a_i||^2 / 2: the quotient of assumption A.1 is 1 everywhere, like its L."""

    dimension, smoothness, gradient_bound, lower_bound = 4, 1.0, 1e3, 0.0
    weights = np.array([0.2, 0.3, 0.5])
    centres = np.random.default_rng(0).normal(size=(3, 4))

    def value(self, client: int, theta: Any) -> float:
        return float(np.square(theta - self.centres[client]).sum()) / 2

    def gradient(self, client: int, theta: Any) -> Any:
        return theta - self.centres[client]

    def block_smoothness(self, block: slice) -> float:
        return 1.0


def test_the_report_says_how_many_comparisons_are_not_trivial(problem: LogisticProblem) -> None:
    report = run(problem, steps=1)
    assert report["drift"].nontrivial == 0  # K_i = 1: no drift, 0 <= 0
    assert report["smoothness"].nontrivial * 2 == report["smoothness"].places
    told = sum(statement.nontrivial for statement in report.statements)
    places = sum(statement.places for statement in report.statements)
    assert told < places
    assert str(report).endswith(
        f"{told} of {places} comparisons: left side not 0, right side finite"
    )


def test_informative_is_reported_only_where_it_means_something(problem: LogisticProblem) -> None:
    report = run(problem, layers=[4, 5])
    silent = {s.name for s in report.statements if s.informative is None}
    assert silent == {
        "smoothness",
        "lower_bound",
        "gradient_bound",
        "one_step_descent",
        "weighted_gradient",
        "weighted_gradient_squared",
        "alignment",
        "block_smoothness",
    }
    assert report["drift"].informative == pytest.approx(2 / 3)  # nothing to say with K_1 = 1
    assert report["block_drift"].informative == pytest.approx(2 / 3)
    assert run(problem, layers=[4, 5], eta_l=1e3)["block_drift"].informative == 0


@pytest.mark.parametrize("layers", [None, [2, 2]])
@pytest.mark.parametrize(("eta_l", "eta_g"), [(1e-10, 0.01), (1e-8, 1e-8), (1e-3, 1e-12)])
def test_a_quotient_of_two_roundings_breaks_no_assumption(
    layers: Any, eta_l: float, eta_g: float
) -> None:
    report = run(Bowls(), eta_l=eta_l, eta_g=eta_g, layers=layers, start=np.full(4, 0.1))
    assert report.violations == (), str(report)
