"""How evenly a model serves its clients: one number per question, from per-client accuracies."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr

from fedcraft.errors import InputError, NonFiniteError

Values = NDArray[np.float64]


def summarise(accuracies: ArrayLike, weights: ArrayLike | None = None) -> dict[str, float]:
    """Summarise one accuracy a_i >= 0 per client, i = 1..n.

    With a sorted a_(1) <= ... <= a_(n), m the mean, and k = max(1, floor(n / 10)):

    * ``mean``, ``median``, ``min``, ``max``; ``std``: population, sqrt(mean((a_i - m)^2))
    * ``best10``, ``worst10``: mean of the k best / k worst clients (paper, Table 1). Below 20
      clients that is one client, so best10 = max and worst10 = min
    * ``cvar10``: mean of the worst tail of mass exactly 0.1 n, the last client counted in part:
      (sum_{i <= floor(t)} a_(i) + (t - floor(t)) a_(floor(t) + 1)) / t with t = n / 10, and min if
      t < 1. Equals worst10 when 10 divides n, or n < 10
    * ``gini``: sum_ij |a_i - a_j| / (2 n^2 m), 0 = all equal, towards 1 = one has all
    * ``jain``: (sum a)^2 / (n sum a^2), 1 = all equal, 1/n = one has all
    * ``entropy``: -sum p_i ln p_i of p_i = a_i / sum a, ln n = all equal, 0 = one has all
    * ``mean_weighted``, ``std_weighted``: mean and population std under ``weights`` (e.g. test
      samples per client), equal weights if none are given

    All accuracies zero count as all equal. Cost: one sort.

    >>> summarise([1.0, 0.5])["std"], summarise([1.0, 0.5], [3, 1])["mean_weighted"]
    (0.25, 0.875)
    """
    values = _checked("accuracies", accuracies)
    ordered = np.sort(values)
    shares = _shares(weights, values.size)
    mean_weighted = float(shares @ values)
    tenth = max(1, values.size // 10)
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "best10": float(ordered[-tenth:].mean()),
        "worst10": float(ordered[:tenth].mean()),
        "min": float(ordered[0]),
        "max": float(ordered[-1]),
        "median": float(np.median(ordered)),
        "gini": _gini(ordered),
        "jain": _jain(values),
        "entropy": _entropy(values),
        "cvar10": _tail_mean(ordered, values.size / 10),
        "mean_weighted": mean_weighted,
        "std_weighted": float(np.sqrt(shares @ (values - mean_weighted) ** 2)),
    }


def _gini(ordered: Values) -> float:
    """sum_ij |a_i - a_j| = 2 sum_i (2 i - n - 1) a_(i), so that sorting replaces the n^2 pairs."""
    total = ordered.sum()
    if total == 0:
        return 0.0
    ranks = 2.0 * np.arange(1, ordered.size + 1) - ordered.size - 1
    return float(ranks @ ordered / (ordered.size * total))


def _jain(values: Values) -> float:
    largest = values.max()
    if largest == 0:
        return 1.0
    # Scaled by the largest, because the squares of tiny values underflow.
    scaled = values / largest
    return float(scaled.sum() ** 2 / (values.size * (scaled @ scaled)))


def _entropy(values: Values) -> float:
    total = values.sum()
    if total == 0:
        return float(np.log(values.size))
    return float(entr(values / total).sum())


def _tail_mean(ordered: Values, tail: float) -> float:
    if tail < 1:
        return float(ordered[0])
    whole = int(tail)
    part = (tail - whole) * ordered[whole] if tail > whole else 0.0
    return float((ordered[:whole].sum() + part) / tail)


def _shares(weights: ArrayLike | None, clients: int) -> Values:
    if weights is None:
        return np.full(clients, 1.0 / clients)
    given = _checked("weights", weights)
    if given.size != clients:
        raise InputError(f"weights must hold {clients} numbers, but they hold {given.size}")
    if given.sum() == 0:
        raise InputError("weights must not all be zero")
    shares: Values = given / given.sum()
    return shares


def _checked(name: str, numbers: ArrayLike) -> Values:
    values = np.asarray(numbers, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise InputError(f"{name} must be a flat, non-empty list, but the shape is {values.shape}")
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        raise NonFiniteError(
            f"{name} must be finite, but entry {wrong[0]} is {values[wrong[0]]} ({wrong.size} in "
            "all); leave out clients without test samples"
        )
    if values.min() < 0:
        raise InputError(f"{name} must not be negative, but entry {values.argmin()} is")
    return values
