"""Intervals cover what they say, are the same every time, and agree with scipy's bootstrap."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedcraft.errors import InputError
from fedcraft.metrics import summarise
from fedcraft.metrics.intervals import (
    RESAMPLES,
    STATISTICS,
    Interval,
    Sample,
    _counts,
    _draws,
    difference,
    interval,
)


def sample(seed: int, clients: int = 60, name: str = "a") -> Sample:
    return Sample(name, np.random.default_rng(seed).beta(6, 3, clients))


def worst10(values: np.ndarray, axis: int = -1) -> np.ndarray:
    tenth = max(1, values.shape[axis] // 10)
    return np.sort(values, axis)[..., :tenth].mean(axis)


@pytest.mark.parametrize("clients", [1, 7, 60, 330])
def test_every_resample_is_summarised_as_the_metrics_are(clients: int) -> None:
    """The counts of a resample, written out as clients, give its statistics."""
    some = sample(0, clients)
    draws = _draws(some)
    counts = _counts(some.clients, clients, 0)
    assert draws.shape == (len(STATISTICS), RESAMPLES)
    assert (counts.sum(axis=0) == clients).all()
    for number in (0, 1, 999):
        written_out = summarise(np.repeat(some.values, counts[:, number]))
        expected = [written_out[name] for name in STATISTICS]
        assert draws[:, number] == pytest.approx(expected, abs=1e-12)


def test_resamples_in_chunks_are_summarised_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedcraft.metrics.intervals._CELLS", 60 * 300)
    some = sample(3, name="in chunks")
    draws = _draws(some)
    assert draws.shape == (len(STATISTICS), RESAMPLES)
    last = np.repeat(some.values, _counts(some.clients, 60, 3)[:, -1])
    assert draws[0, -1] == pytest.approx(last.mean())


@pytest.mark.parametrize(
    ("name", "function"), [("mean", np.mean), ("std", np.std), ("worst10", worst10)]
)
def test_one_seed_has_the_interval_of_scipys_bootstrap(name: str, function: object) -> None:
    """Scipy's BCa also corrects the skewness; on these values that changes little."""
    some = sample(1, 400)
    found = interval([some], name)
    theirs = stats.bootstrap(
        (some.values,), function, n_resamples=2000, method="BCa", rng=np.random.default_rng(0)
    )
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert found.value == pytest.approx(summarise(some.values)[name])
    assert found.low == pytest.approx(theirs.confidence_interval.low, abs=0.12 * width)
    assert found.high == pytest.approx(theirs.confidence_interval.high, abs=0.12 * width)


def test_the_mean_of_normal_accuracies_is_covered_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    found = [interval([Sample(f"{i}", rng.normal(0.6, 0.1, 50))], "mean") for i in range(300)]
    covered = np.mean([i.low <= 0.6 <= i.high for i in found])
    # Of 300 intervals, 95 % give or take three standard errors; small samples cost a little.
    assert 0.90 <= covered <= 0.985


def test_the_seeds_add_their_t_interval_in_quadrature() -> None:
    """Clients that are all equal have no width of their own: only the seeds are left."""
    levels = [0.5, 0.52, 0.57]
    samples = [Sample("same", np.full(30, level)) for level in levels]
    found = interval(samples, "mean")
    low, high = stats.t.interval(0.95, 2, loc=np.mean(levels), scale=stats.sem(levels))
    assert (found.low, found.high) == pytest.approx((low, high))
    varied = [Sample("same", s.values + sample(1, 30).values - 0.5) for s in samples]
    alone = interval(varied[:1], "mean")
    together = interval(varied, "mean")
    assert together.high - together.value == pytest.approx(
        math.hypot(alone.high - alone.value, high - np.mean(levels)), rel=0.05
    )


def test_an_interval_ends_where_accuracies_end() -> None:
    """Three seeds that differ widely: their t interval alone would reach below 0 and above 1."""
    samples = [Sample(f"{s}", np.full(30, level)) for s, level in enumerate([0.1, 0.5, 0.9])]
    assert interval(samples, "mean")[1:] == (0.0, 1.0)
    assert interval(samples, "best10")[1:] == (0.0, 1.0)
    halves = [Sample(f"{s}", np.repeat([0.0, level], 15)) for s, level in enumerate([0.1, 1, 1])]
    assert interval(halves, "std")[1:] == (0.0, 0.5)
    assert all(map(math.isnan, interval([], "mean")))


def test_a_constant_gain_on_the_same_clients_is_certain() -> None:
    theirs = sample(2)
    ours = Sample(theirs.clients, theirs.values + 0.01)
    found = difference([ours], [theirs], "mean")
    assert found == pytest.approx((0.01, 0.01, 0.01))
    assert (found.sign, difference([theirs], [ours], "worst10").sign) == (1, -1)
    assert difference([ours], [theirs], "std") == pytest.approx((0, 0, 0), abs=1e-12)


def test_other_clients_are_not_paired() -> None:
    theirs = sample(2)
    strangers = Sample("others", theirs.values + 0.01)
    found = difference([strangers], [theirs], "mean")
    assert found.value == pytest.approx(0.01)
    assert found.sign == 0
    single = interval([theirs], "mean")
    assert found.high - found.low == pytest.approx(
        math.sqrt(2) * (single.high - single.low), rel=0.15
    )


def test_numbers_do_not_depend_on_what_was_computed_before() -> None:
    first = interval([sample(1), sample(2, name="b")], "worst10")
    interval([sample(9, 40, "c")], "worst10")
    _draws.__globals__["_cached_draws"].cache_clear()
    assert interval([sample(1), sample(2, name="b")], "worst10") == first


@pytest.mark.parametrize(
    ("clients", "statistic"), [(1, "mean"), (1, "std"), (19, "worst10"), (19, "best10")]
)
def test_too_few_clients_have_no_interval(clients: int, statistic: str) -> None:
    found = interval([sample(0, clients)], statistic)
    assert all(map(math.isnan, found))
    assert found.sign == 0


def test_no_seed_has_no_interval() -> None:
    assert math.isnan(interval([], "mean").low)
    assert Interval(0.1, math.nan, math.nan).sign == 0


def test_samples_that_are_not_paired_are_refused() -> None:
    with pytest.raises(InputError, match="the same seeds, but have the lengths 1 and 2"):
        difference([sample(1)], [sample(1), sample(2)], "mean")
