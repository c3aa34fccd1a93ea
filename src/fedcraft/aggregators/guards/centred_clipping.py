"""Centred clipping: every update within a radius of a robust centre."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.guards.base import Guard, Judgement
from fedcraft.aggregators.guards.geometric_median import distances_from, weiszfeld
from fedcraft.errors import require


class CentredClipping(Guard):
    """x_i' = v + min(1, tau / ||x_i - v||) (x_i - v) (Karimireddy, He and Jaggi, ICML 2021).

    ``radius``: tau, relative to the median distance from the centre v. The paper's centre is the
    last aggregate, which a rule's memory may hold but a cohort does not; here it is the geometric
    median of this round, followed by ``iterations`` steps v <- mean_i x_i' of the paper. So v and
    every x_i' are mixtures of this round's updates, and all of it happens on the Gram matrix.
    Leaves nobody out.
    """

    def __init__(self, *, radius: float = 1.0, iterations: int = 3, **options: Any) -> None:
        super().__init__(**options)
        require(radius > 0, "radius", "a number above 0", radius)
        require(iterations >= 0, "iterations", "a number >= 0", iterations)
        self.radius, self.iterations = radius, iterations

    def judge(self, cohort: Cohort) -> Judgement:
        products, weights = cohort.gram, self.capped(cohort).weights
        centre = weiszfeld(products, weights, iterations=100, nu=1e-3)
        tau = self.radius * float(distances_from(products, centre).quantile(0.5))
        for _ in range(self.iterations):
            centre = weights @ _clipped(products, centre, tau)
        return Judgement(mixing=_clipped(products, centre, tau))


def _clipped(products: Tensor, centre: Tensor, tau: float) -> Tensor:
    """Return the mixing matrix whose rows are v + s_i (x_i - v) for v = sum_j c_j x_j."""
    distances = distances_from(products, centre)
    factors = torch.where(distances > tau, tau / distances.clamp(min=1e-300), 1.0)
    return torch.diag(factors) + (1 - factors).unsqueeze(-1) * centre
