"""A claim is checked at every place; only rounding is allowed."""

from __future__ import annotations

import numpy as np

from fedcraft.theory import Claim


def judge(left: object, right: object, scale: object = 0.0) -> tuple[int, float]:
    found = Claim("name", "where", left, right, scale).judge(1e-9)  # type: ignore[arg-type]
    return found.broken, found.ratio


def test_rounding_is_forgiven_and_more_is_not() -> None:
    assert judge(1 + 1e-12, 1.0)[0] == 0
    assert judge(1 + 1e-6, 1.0)[0] == 1
    assert judge(1e-12, 0.0)[0] == 1
    assert judge(1e-12, 0.0, scale=1.0) == (0, 0.0)


def test_nan_is_never_fine() -> None:
    assert judge(np.nan, 1.0)[0] == 1
    assert judge(1.0, np.nan)[0] == 1


def test_infinite_bounds_hold() -> None:
    assert judge(3.0, np.inf) == (0, 0.0)
    assert judge(np.inf, 3.0)[0] == 1


def test_a_place_that_says_nothing_is_not_counted_as_telling() -> None:
    found = Claim("n", "w", [0.0, 1.0, 1.0, -1.0], [1.0, np.inf, 2.0, 1.0]).judge(0)
    assert (found.places, found.nontrivial) == (4, 2)
    assert found.informative is None
    assert Claim("n", "w", [np.nan, 1.0], [1.0, np.nan]).judge(0).nontrivial == 2


def test_a_left_side_that_is_rounding_counts_as_zero() -> None:
    found = Claim("n", "w", [1e-16, 0.5], [1e-30, 1.0], 1.0).judge(1e-9)
    assert (found.ratio, found.nontrivial, found.broken) == (0.5, 1, 0)


def test_the_tightest_place_and_the_typical_one_are_distinguished() -> None:
    found = Claim("n", "w", [1.0, 4.0, 1.0], [10.0, 5.0, 2.0], 0.0, [True, False, False]).judge(0)
    assert (found.left, found.right, found.ratio) == (4.0, 5.0, 0.8)
    assert found.typical == 0.5
    assert found.places == 3
    assert found.informative == 1 / 3
    assert found.holds


def test_broken_places_are_counted() -> None:
    found = Claim("n", "w", [[1.0, 3.0], [2.0, 0.0]], [1.5, 1.5]).judge(1e-9)
    assert found.broken == 2
    assert not found.holds
