"""Every bound against numbers worked out by hand from the paper's formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedcraft import theory
from fedcraft.errors import InputError
from fedcraft.theory import Constants
from fedcraft.updates import Layout

KNOWN = Constants(
    weights=np.array([0.25, 0.75]),
    targets=np.array([0.25, 0.75]),
    smoothness=2.0,
    gradient_bound=3.0,
    lower_bound=1.0,
    max_steps=3,
    update_bound=4.0,
    block_smoothness=(1.0, 2.0),
    block_update_bounds=(3.0, 2.0),
)
RUN = {"eta_l": 0.1, "eta_g": 0.5, "rounds": 10}


def test_constants_follow_equations_a1_and_a34() -> None:
    assert KNOWN.rho_min == 0.25
    assert KNOWN.c == pytest.approx(1 / 12)
    assert KNOWN.overlap == pytest.approx(0.625)
    assert KNOWN.drift == pytest.approx(3 * (4 + 0.625))
    assert KNOWN.block_drifts == pytest.approx((1.5 * 3.625, 3 * 2.625))
    assert KNOWN.layer_drift == pytest.approx(13.3125)
    assert KNOWN.layer_update_bound == pytest.approx(math.sqrt(13))


def test_uniform_targets_replace_rho_in_the_alignment_only() -> None:
    uniform = replace(KNOWN, targets=np.array([0.5, 0.5]))
    assert uniform.rho_min == 0.5
    assert uniform.overlap == pytest.approx(0.5)


def test_drift_bound_is_lemma_a6() -> None:
    assert theory.drift_bound(2.0, 3.0, 0.1, 4) == pytest.approx(0.36)
    assert theory.drift_bound(2.0, 3.0, 0.1, 1) == 0


def test_weighted_gradient_bound_is_lemma_a7() -> None:
    assert theory.weighted_gradient_bound(KNOWN, 2.0) == pytest.approx((0.5, 1 / 3))


def test_descent_bounds_are_lemmas_a8_and_a9_and_their_layer_form() -> None:
    assert theory.common_descent_bound(KNOWN, 2.0, 0.1) == pytest.approx(1 / 3 - 2.775)
    assert theory.linear_common_descent_bound(KNOWN, 2.0, 0.1) == pytest.approx(0.5 - 2.775)
    assert theory.layerwise_descent_bound(KNOWN, 2.0, 0.1) == pytest.approx(1 / 3 - 2.6625)


def test_convergence_bound_is_theorem_a4() -> None:
    bound = theory.convergence_bound(KNOWN, 5.0, **RUN)
    assert (bound.start, bound.step, bound.drift) == pytest.approx((9.6, 96, 33.3))
    assert bound.total == pytest.approx(138.9)


def test_average_norm_bound_is_corollary_a10() -> None:
    bound = theory.average_norm_bound(KNOWN, 5.0, **RUN)
    assert (bound.start, bound.step, bound.drift) == pytest.approx((3.2, 32, 11.1))


def test_layerwise_bound_is_corollary_a11() -> None:
    bound = theory.layerwise_bound(KNOWN, 5.0, **RUN)
    assert (bound.start, bound.step, bound.drift) == pytest.approx((9.6, 78, 31.95))
    missed = theory.layerwise_bound(KNOWN, 5.0, **RUN, mean_residual=0.5)
    assert missed.total - bound.total == pytest.approx(6)


def test_residual_bound_is_corollary_a12() -> None:
    term = theory.residual_term(KNOWN, np.array([-0.4, 0.2]), 0.1)
    assert term == pytest.approx(3.6 * 0.25)
    assert theory.residual_term(KNOWN, np.array([-0.4, 0.2]), 0.1, 1.0) == pytest.approx(3.3 * 0.25)
    bound = theory.residual_bound(KNOWN, 5.0, **RUN, mean_residual=term)
    assert bound.residual == pytest.approx(10.8)
    exact = theory.convergence_bound(KNOWN, 5.0, **RUN)
    assert bound.total == pytest.approx(exact.total + 10.8)


def test_update_norm_bound_needs_independent_clients() -> None:
    assert theory.update_norm_bound(np.array([0.6, 0.8]), 0.5) == pytest.approx(math.sqrt(5))
    assert theory.update_norm_bound(np.array([0.6, 0.8]), 0.0) == math.inf


def test_stationarity_floor_is_aligned_gradients_over_g() -> None:
    one_step = replace(KNOWN, max_steps=1)
    norms = np.array([2.0, 1.0])
    assert theory.stationarity_floor(one_step, norms, 0.1) == pytest.approx(0.6875 / 4)
    assert theory.stationarity_floor(KNOWN, norms, 0.1) == 0


def test_constants_are_collected_from_a_problem() -> None:
    problem = theory.LogisticProblem((np.eye(2), np.ones((2, 2))))
    layout = Layout.from_sizes([1, 1])
    known = theory.constants(problem, steps=[1, 5], update_bound=2.0, layout=layout)
    assert known.max_steps == 5
    assert known.smoothness == pytest.approx(4 / 8)  # s(ones)^2 / (4 n) = 4 / 8
    assert known.block_smoothness == pytest.approx((2 * math.sqrt(2) / 8,) * 2)
    assert known.block_update_bounds == (2.0, 2.0)
    assert known.gradient_bound == pytest.approx(math.sqrt(2))


def test_constants_refuse_what_does_not_fit() -> None:
    problem = theory.LogisticProblem((np.eye(2), np.eye(2)))
    with pytest.raises(InputError, match="block_update_bounds"):
        theory.constants(problem, steps=1, update_bound=1.0, block_update_bounds=[1.0, 2.0])
    with pytest.raises(InputError, match="targets"):
        theory.constants(problem, steps=1, update_bound=1.0, targets=np.array([1.0, 0.0]))
