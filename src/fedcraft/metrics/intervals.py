"""95 % confidence intervals of mean, best tenth, worst tenth and std, and of paired differences.

A result has two sources of chance: which clients take part in the evaluation, and the seed of the
training. The clients are resampled (bootstrap); the seeds, which are too few to resample, give a
t interval. Both widths are added in quadrature.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit

from fedcraft.errors import InputError
from fedcraft.metrics.fairness import summarise

Values = NDArray[np.float64]

LEVEL = 0.95
RESAMPLES = 1000
STATISTICS = ("mean", "best10", "worst10", "std")
_CELLS = 4_000_000
"""Counts of clients in resamples that are in memory at once."""
_FEWEST = {"mean": 2, "std": 2, "best10": 20, "worst10": 20}
"""Below 20 clients a tenth is one client, and the bootstrap of an extreme value is not valid."""


@dataclass(frozen=True, eq=False)
class Sample:
    """The accuracies of the clients under one trained model.

    ``clients`` says which clients these are: samples with the same text are of the same clients in
    the same order, and are resampled together.
    """

    clients: str
    values: Values


class Interval(NamedTuple):
    """An estimate with the ends of its interval; NaN where there is none."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 if the whole interval is above zero, -1 if it is below, else 0 (also for NaN)."""
        return int(self.low > 0) - int(self.high < 0)


def interval(samples: Sequence[Sample], statistic: str) -> Interval:
    """Return ``statistic`` averaged over seeds (a sample each), with its interval.

    With v_1..v_S the statistic of each seed and v their mean, let [l, u] be the bias-corrected
    bootstrap interval over clients of v, and h = t_{S-1} sd(v_1..v_S) / sqrt(S), 0 for one seed.
    The interval is [v - sqrt((v - l)^2 + h^2), v + sqrt((u - v)^2 + h^2)], cut off at 0 and at 1
    (std: 0.5), beyond which no accuracies lead. Of a single seed it says nothing about other seeds.
    Where the seeds also deal the data to other clients, sd contains part of the client's chance,
    and the interval is too wide rather than too narrow.
    """
    values, draws = [_statistic(s, statistic) for s in samples], [_draws(s) for s in samples]
    value, low, high = _estimate(values, draws, statistic, _fewest(samples))
    return Interval(value, max(low, 0.0), min(high, 0.5 if statistic == "std" else 1.0))


def difference(ours: Sequence[Sample], theirs: Sequence[Sample], statistic: str) -> Interval:
    """Return the mean over seeds of our statistic minus theirs, with its interval.

    Samples are paired by place: the same seed. Resamples draw the same clients for both where
    these are the same; otherwise they are independent, which makes the interval wider.
    """
    if len(ours) != len(theirs):
        raise InputError(
            "ours and theirs should be samples of the same seeds, but have the lengths "
            f"{len(ours)} and {len(theirs)}."
        )
    pairs = list(zip(ours, theirs, strict=True))
    values = [_statistic(a, statistic) - _statistic(b, statistic) for a, b in pairs]
    draws = [_draws(a) - _draws(b) for a, b in pairs]
    return _estimate(values, draws, statistic, _fewest([*ours, *theirs]))


def _estimate(
    values: Sequence[float], draws: Sequence[Values], statistic: str, clients: int
) -> Interval:
    if not values or clients < _FEWEST[statistic]:
        return Interval(math.nan, math.nan, math.nan)
    value = float(np.mean(values))
    low, high = _bias_corrected(value, np.mean(draws, axis=0)[STATISTICS.index(statistic)])
    seeds = _half_width_over_seeds(values)
    below, above = max(value - low, 0.0), max(high - value, 0.0)
    return Interval(value, value - math.hypot(below, seeds), value + math.hypot(above, seeds))


def _half_width_over_seeds(values: Sequence[float]) -> float:
    seeds = len(values)
    if seeds == 1:
        return 0.0
    t = float(stdtrit(seeds - 1, (1 + LEVEL) / 2))
    return t * float(np.std(values, ddof=1)) / math.sqrt(seeds)


def _bias_corrected(value: float, draws: Values) -> tuple[float, float]:
    """Efron's BC interval: percentiles shifted by twice the median bias z0 of the draws."""
    below = (np.mean(draws < value) + np.mean(draws <= value)) / 2
    shift = 2 * ndtri(np.clip(below, 1 / draws.size, 1 - 1 / draws.size))
    ends = ndtr(shift + ndtri([(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    low, high = np.quantile(draws, ends)
    return float(low), float(high)


def _fewest(samples: Sequence[Sample]) -> int:
    return min((sample.values.size for sample in samples), default=0)


def _statistic(sample: Sample, statistic: str) -> float:
    return summarise(sample.values)[statistic] if sample.values.size else math.nan


def _draws(sample: Sample) -> Values:
    """Return the statistics of every resample of the clients: a row for each of STATISTICS."""
    return _cached_draws(sample.clients, np.ascontiguousarray(sample.values, np.float64).tobytes())


@lru_cache(maxsize=256)
def _cached_draws(clients: str, content: bytes) -> Values:
    values = np.frombuffer(content)
    if values.size == 0:
        return np.full((len(STATISTICS), RESAMPLES), math.nan)
    order = np.argsort(values, kind="stable")
    chunks = range(len(_chunks(values.size)))
    parts = [_statistics(values, order, _counts(clients, values.size, i)) for i in chunks]
    return np.concatenate(parts, axis=1)


def _chunks(n: int) -> list[int]:
    """Return how many resamples of n clients are made at a time."""
    step = max(1, _CELLS // n)
    return [min(step, RESAMPLES - start) for start in range(0, RESAMPLES, step)]


@lru_cache(maxsize=4)
def _counts(clients: str, n: int, chunk: int) -> NDArray[np.int32]:
    """Return how often each client (row) is part of each resample (column) of a chunk."""
    seed = int.from_bytes(hashlib.sha256(clients.encode()).digest()[:8], "little")
    rng = np.random.default_rng([seed, n, chunk])
    drawn = rng.integers(n, size=(_chunks(n)[chunk], n), dtype=np.int32)
    counts = np.stack([np.bincount(row, minlength=n) for row in drawn], axis=1)
    return counts.astype(np.int32)


def _statistics(values: Values, order: NDArray[np.intp], counts: NDArray[np.int32]) -> Values:
    centre = values.mean()  # squares of centred values do not cancel
    moments = np.stack([values - centre, (values - centre) ** 2]) @ counts / values.size
    std = np.sqrt(np.maximum(moments[1] - moments[0] ** 2, 0.0))
    best, worst = (_tail(values, o, counts) for o in (order[::-1], order))
    return np.stack([centre + moments[0], best, worst, std])


def _tail(values: Values, order: NDArray[np.intp], counts: NDArray[np.int32]) -> Values:
    """Return the mean of the first tenth of each resample in ``order``, without sorting it."""
    tenth = max(1, values.size // 10)
    # The first tenth of a resample almost never reaches beyond the first fifth of the clients.
    for width in (2 * tenth + 30, values.size):
        first = order[:width]
        reached = np.cumsum(counts[first], axis=0)
        if reached[-1].min() >= tenth:
            break
    taken = np.diff(np.minimum(reached, tenth), axis=0, prepend=0)
    mean: Values = values[first] @ taken / tenth
    return mean
