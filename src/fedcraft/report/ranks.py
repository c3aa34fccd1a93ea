"""The columns of the summary and which value is best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcraft.report.extras import needs

with needs("pandas"):
    import pandas as pd

__all__ = ["METRICS", "Metric", "places", "sound"]


@dataclass(frozen=True)
class Metric:
    """A column of the summary: its key, its heading, its direction and its decimals."""

    key: str
    heading: str
    higher_is_better: bool
    decimals: int
    meaning: str

    def written(self, value: float) -> float:
        """The value that a reader sees."""
        return float(f"{value:.{self.decimals}f}")


METRICS = (
    Metric("mean", "Mean", True, 3, "mean test accuracy over clients"),
    Metric("best10", "Best 10 %", True, 3, "mean accuracy of the best tenth of the clients"),
    Metric("worst10", "Worst 10 %", True, 3, "mean accuracy of the worst tenth of the clients"),
    Metric("std", "Std", False, 3, "standard deviation of accuracy over clients"),
    Metric("conflicts", "Conflicts", False, 1, "clients per round that the step works against"),
)


def sound(table: pd.DataFrame, key: str) -> pd.Series:
    """A column of the summary without what the methods that diverged had reached before."""
    return table[key].mask(table["diverged"] > 0)


def places(values: pd.Series, metric: Metric) -> list[int]:
    """1 for the best value, 2 for the second best, 0 for the rest; equal when written equal.

    A column whose values are all written equal has no best.
    """
    written = np.array([metric.written(value) for value in values])
    distinct = np.unique(written[np.isfinite(written)])
    ordered = distinct[::-1] if metric.higher_is_better else distinct
    if len(ordered) < 2:
        return [0] * len(written)
    return [1 if v == ordered[0] else 2 if v == ordered[1] else 0 for v in written]
