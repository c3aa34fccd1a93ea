"""Norm clipping: no update is longer than a multiple of the cohort's median."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.guards.base import Guard, Judgement
from fedcraft.errors import require


class NormClipping(Guard):
    """x_i' = min(1, k median_j ||x_j|| / ||x_i||) x_i with k = ``factor``.

    Sun et al. 2019 clip at a constant; the median of the round needs none (as in Lycklama et al.,
    IEEE S&P 2023). Leaves nobody out. CRAFT normalises every update and hardly notices.
    """

    def __init__(self, *, factor: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        require(factor > 0, "factor", "a number above 0", factor)
        self.factor = factor

    def judge(self, cohort: Cohort) -> Judgement:
        factors = length_limits(cohort.square_norms.sum(0).sqrt(), self.factor)
        return Judgement(mixing=None if bool((factors == 1).all()) else torch.diag(factors))


def length_limits(norms: Tensor, factor: float) -> Tensor:
    """Return min(1, k median / ||x_i||); the median is over the updates that are not zero."""
    moving = norms[norms > 0]
    if not len(moving):
        return torch.ones_like(norms)
    limit = factor * moving.quantile(0.5)
    return torch.where(norms > limit, limit / norms.clamp(min=torch.finfo(norms.dtype).tiny), 1.0)
