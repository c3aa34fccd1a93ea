"""The problem's constants are true and its gradients are the values' gradients."""

from __future__ import annotations

import numpy as np
import pytest

from fedcraft.errors import InputError
from fedcraft.theory import LogisticProblem, SmoothProblem, random_logistic

CURVATURES = pytest.mark.parametrize("curvature", [0.0, 0.3])


def problem(curvature: float, seed: int = 3) -> LogisticProblem:
    return random_logistic(np.random.default_rng(seed), [9, 5, 14], 6, curvature=curvature)


@CURVATURES
def test_it_is_a_smooth_problem(curvature: float) -> None:
    found = problem(curvature)
    assert isinstance(found, SmoothProblem)
    assert found.weights == pytest.approx(np.array([9, 5, 14]) / 28)


@CURVATURES
def test_gradient_is_the_slope_of_the_value(curvature: float) -> None:
    it, rng = problem(curvature), np.random.default_rng(0)
    theta, direction = rng.standard_normal((2, it.dimension))
    for client in range(3):
        rise = it.value(client, theta + 1e-6 * direction) - it.value(
            client, theta - 1e-6 * direction
        )
        assert rise / 2e-6 == pytest.approx(it.gradient(client, theta) @ direction, rel=1e-6)


@CURVATURES
def test_constants_hold_far_and_near(curvature: float) -> None:
    it, rng = problem(curvature), np.random.default_rng(1)
    for scale in (1e-2, 1.0, 1e2):
        for client in range(3):
            one, other = scale * rng.standard_normal((2, it.dimension))
            change = it.gradient(client, one) - it.gradient(client, other)
            distance = np.linalg.norm(one - other)
            assert np.linalg.norm(change) <= it.smoothness * distance
            for block in (slice(0, 2), slice(2, 6)):
                assert np.linalg.norm(change[block]) <= it.block_smoothness(block) * distance
            assert np.linalg.norm(it.gradient(client, one)) <= it.gradient_bound
            assert it.value(client, one) >= it.lower_bound


@CURVATURES
def test_smoothness_is_the_curvature_at_zero_and_no_more(curvature: float) -> None:
    z = np.random.default_rng(2).standard_normal((8, 4))
    it = LogisticProblem((z,), curvature)
    _, _, rows = np.linalg.svd(z)
    bend = (it.gradient(0, 1e-5 * rows[0]) - it.gradient(0, -1e-5 * rows[0])) @ rows[0] / 2e-5
    assert bend == pytest.approx(it.smoothness, rel=1e-6)


def test_the_penalty_makes_it_non_convex() -> None:
    it = LogisticProblem((np.full((1, 1), 1e-9),), curvature=1.0)
    middle = it.value(0, np.array([2.0]))
    ends = it.value(0, np.array([1.0])), it.value(0, np.array([3.0]))
    assert middle > sum(ends) / 2


def test_without_heterogeneity_and_noise_one_separator_fits_all() -> None:
    rng = np.random.default_rng(5)
    it = random_logistic(rng, [30, 30], 4, heterogeneity=0.0, noise=0.0)
    separator = np.random.default_rng(5).standard_normal(4)
    assert all((z @ separator >= 0).all() for z in it.samples)


@pytest.mark.parametrize(
    ("samples", "curvature", "message"),
    [
        ((), 0.0, "samples"),
        ((np.ones((2, 3)), np.ones((2, 4))), 0.0, "same d"),
        ((np.ones((0, 3)),), 0.0, "non-empty"),
        ((np.ones((2, 3)),), -1.0, "curvature"),
    ],
)
def test_impossible_problems_are_refused(
    samples: tuple[np.ndarray, ...], curvature: float, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        LogisticProblem(samples, curvature)
