"""Bulyan: Multi-Krum's selection, then a mean around the coordinate-wise median."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.guards.krum import krum_scores, presumed
from fedcraft.errors import require

_CHUNK = 1 << 16


class Bulyan(Aggregator):
    """Mean of the b values nearest to the median, coordinate by coordinate, of t chosen clients.

    t = m - 2 f clients with the smallest Krum score, b = t - 2 f (El Mhamdi et al., ICML 2018; like
    Flower's Bulyan, which takes the t best at once where the paper chooses one by one). ``hostile``
    is f, or below 1 a share of the cohort; f is lowered to (m - 3) / 4, above which nothing is
    guaranteed. Every client counts alike. Needs the rows in memory; cost O(m^2 d).
    """

    def __init__(self, *, hostile: float = 0.2, **options: Any) -> None:
        super().__init__(**options)
        require(hostile >= 0, "hostile", "a number of clients, or a share below 1", hostile)
        self.hostile = hostile

    def direction(self, cohort: Cohort) -> Outcome:
        if cohort.size < 3:
            return Outcome(cohort.matrix.mean(dim=0))
        f = min(presumed(self.hostile, cohort.size), max((cohort.size - 3) // 4, 0))
        chosen = krum_scores(cohort.gram, f).sort(stable=True).indices[: cohort.size - 2 * f]
        rows = cohort.matrix[chosen.to(cohort.matrix.device)]
        return Outcome(_near_median(rows, cohort.size - 4 * f))


def _near_median(rows: Tensor, count: int) -> Tensor:
    parts = []
    for part in torch.split(rows, _CHUNK, dim=1):
        ordered = part.sort(dim=0).values
        upper = len(rows) // 2
        median = (ordered[upper] + ordered[(len(rows) - 1) // 2]) / 2
        nearest = (ordered - median).abs().sort(dim=0, stable=True).indices[:count]
        parts.append(ordered.gather(0, nearest).mean(dim=0))
    return torch.cat(parts)
