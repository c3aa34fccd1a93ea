"""Fairness numbers against values computed by hand."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcraft.errors import InputError, NonFiniteError
from fedcraft.metrics import summarise

KEYS = {
    "mean",
    "std",
    "best10",
    "worst10",
    "min",
    "max",
    "median",
    "gini",
    "jain",
    "entropy",
    "cvar10",
    "mean_weighted",
    "std_weighted",
}


def test_four_clients_by_hand() -> None:
    numbers = summarise([0.2, 0.4, 0.6, 0.8], weights=[1, 1, 1, 5])
    assert set(numbers) == KEYS
    # 20 ordered pairs' differences: 2 (0.2+0.4+0.6 + 0.2+0.4 + 0.2) = 4, over 2 * 16 * 0.5
    shares = [0.1, 0.2, 0.3, 0.4]
    by_hand = {
        "mean": 0.5,
        "std": math.sqrt(0.05),
        "best10": 0.8,
        "worst10": 0.2,
        "min": 0.2,
        "max": 0.8,
        "median": 0.5,
        "gini": 0.25,
        "jain": 4.0 / (4 * 1.2),
        "entropy": -sum(p * math.log(p) for p in shares),
        "cvar10": 0.2,
        "mean_weighted": 0.65,
        "std_weighted": math.sqrt((0.45**2 + 0.25**2 + 0.05**2 + 5 * 0.15**2) / 8),
    }
    assert numbers == pytest.approx(by_hand)


def test_best_and_worst_are_means_of_the_whole_tenth() -> None:
    numbers = summarise(np.random.default_rng(0).permutation(np.arange(30)))
    assert numbers["worst10"] == pytest.approx(1.0)
    assert numbers["best10"] == pytest.approx(28.0)
    assert numbers["cvar10"] == numbers["worst10"]


@pytest.mark.parametrize(("clients", "tenth"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (29, 2)])
def test_tenth_of_few_clients_is_rounded_down_but_at_least_one(clients: int, tenth: int) -> None:
    values = np.arange(clients, dtype=float)
    numbers = summarise(values)
    assert numbers["worst10"] == pytest.approx(values[:tenth].mean())
    assert numbers["best10"] == pytest.approx(values[-tenth:].mean())


def test_cvar_counts_the_last_client_of_the_tail_in_part() -> None:
    # n = 25: a tail of 2.5 clients, (0 + 1 + 0.5 * 2) / 2.5
    assert summarise(np.arange(25.0))["cvar10"] == pytest.approx(0.8)
    assert summarise(np.arange(25.0))["worst10"] == pytest.approx(0.5)


def test_one_client_with_everything_is_the_unfair_end() -> None:
    numbers = summarise([0.0, 0.0, 0.0, 0.9])
    assert numbers["gini"] == pytest.approx(0.75)
    assert numbers["jain"] == pytest.approx(0.25)
    assert numbers["entropy"] == 0.0


@pytest.mark.parametrize("value", [0.0, 1e-300, 0.7])
def test_equal_clients_are_the_fair_end(value: float) -> None:
    numbers = summarise([value] * 8)
    assert numbers["gini"] == pytest.approx(0.0, abs=1e-15)
    assert numbers["jain"] == pytest.approx(1.0)
    assert numbers["entropy"] == pytest.approx(math.log(8))


def test_vanishing_accuracy_beside_a_whole_one_has_no_share() -> None:
    assert summarise([5e-324, 1.0, 1.0])["entropy"] == pytest.approx(math.log(2))


def test_without_weights_the_weighted_numbers_are_the_plain_ones() -> None:
    numbers = summarise([0.1, 0.5, 0.9, 0.4])
    assert numbers["mean_weighted"] == pytest.approx(numbers["mean"])
    assert numbers["std_weighted"] == pytest.approx(numbers["std"])


accuracies = st.lists(st.floats(0, 1), min_size=1, max_size=60)


@given(values=accuracies)
def test_gini_and_jain_agree_with_their_definitions(values: list[float]) -> None:
    a = np.array(values)
    numbers = summarise(a)
    if a.mean() > 1e-100:
        pairs = np.abs(a[:, None] - a).sum() / (2 * a.size**2 * a.mean())
        assert numbers["gini"] == pytest.approx(pairs, abs=1e-9)
        if (a**2).sum() > 1e-100:
            expected = a.sum() ** 2 / (a.size * (a**2).sum())
            assert numbers["jain"] == pytest.approx(expected)


@given(values=accuracies, seed=st.integers(0, 99))
def test_order_of_clients_does_not_matter_and_numbers_are_ordered(
    values: list[float], seed: int
) -> None:
    numbers = summarise(values)
    shuffled = summarise(np.random.default_rng(seed).permutation(values))
    assert shuffled == pytest.approx(numbers, abs=1e-12)
    slack = 1e-12
    rising = [numbers[key] for key in ("min", "worst10", "cvar10", "mean", "best10", "max")]
    assert all(low <= high + slack for low, high in pairwise(rising))


@pytest.mark.parametrize(
    ("values", "weights", "error", "message"),
    [
        ([0.5, math.nan], None, NonFiniteError, "entry 1 is nan"),
        ([0.5, math.inf], None, NonFiniteError, "entry 1 is inf"),
        ([], None, InputError, "non-empty"),
        ([[0.5]], None, InputError, "flat"),
        ([0.5, -0.1], None, InputError, "must not be negative"),
        ([0.5, 0.6], [1.0], InputError, "weights must hold 2"),
        ([0.5, 0.6], [0.0, 0.0], InputError, "not all be zero"),
        ([0.5, 0.6], [1.0, math.nan], NonFiniteError, "weights must be finite"),
    ],
)
def test_numbers_that_are_not_accuracies_are_refused(
    values: Any, weights: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        summarise(values, weights)
