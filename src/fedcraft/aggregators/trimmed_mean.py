"""The coordinate-wise trimmed mean of the updates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.cohort import Cohort
from fedcraft.errors import require

_CHUNK = 1 << 16  # coordinates that are sorted at a time, so that the copy stays small


class TrimmedMean(Aggregator):
    """The mean of g_i[k] without the b largest and the b smallest, every client alike.

    b = floor(``beta`` m) (Yin et al., ICML 2018; Flower's FedTrimmedAvg). Needs the rows in memory;
    remembers nothing; cost O(m log m d).
    """

    def __init__(self, *, beta: float = 0.2, **options: Any) -> None:
        super().__init__(**options)
        require(0 <= beta < 0.5, "beta", "a share in [0, 0.5)", beta)
        self.beta = beta

    def direction(self, cohort: Cohort) -> Outcome:
        return Outcome(middle_mean(cohort.matrix, int(self.beta * cohort.size)))


def middle_mean(rows: Tensor, cut: int) -> Tensor:
    """Return the mean of each column without its ``cut`` largest and smallest entries, (d,)."""
    kept = slice(cut, len(rows) - cut)
    parts = [part.sort(dim=0).values[kept].mean(dim=0) for part in torch.split(rows, _CHUNK, dim=1)]
    return torch.cat(parts)
