"""The geometric median (RFA): weights that fall with the distance from the median."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.guards.base import Guard, Judgement, Scale, check_scale, kernel
from fedcraft.errors import require
from fedcraft.linalg import ratio, rounding, shares


class GeometricMedian(Guard):
    """Weigh client i with Weiszfeld's weight (Pillutla et al., RFA, IEEE TSP 2022)::

        v = argmin_v sum_i a_i ||x_i - v||,     w_i ~ a_i / max(nu, ||x_i - v||)

    with a the clients' shares, so that v = sum_i w_i x_i: the average behind this guard *is* RFA,
    and for CRAFT w_i is the progress that a client may ask for. Leaves nobody out. Every iteration
    costs O(m^2) on the Gram matrix. ``nu`` is relative to the largest ||x_i||.
    """

    def __init__(
        self, *, scale: Scale = "raw", iterations: int = 100, nu: float = 1e-6, **options: Any
    ) -> None:
        super().__init__(**options)
        require(iterations >= 1, "iterations", "at least 1", iterations)
        require(nu > 0, "nu", "a number above 0", nu)
        self.scale, self.iterations, self.nu = check_scale(scale), iterations, nu

    def judge(self, cohort: Cohort) -> Judgement:
        products, weights = kernel(cohort, self.scale), self.capped(cohort).weights
        # Below the square root of rounding, a distance from products has no digit left.
        nu = max(self.nu, math.sqrt(rounding(cohort.dtype)))
        found = weiszfeld(products, weights, self.iterations, nu)
        return Judgement(factors=ratio(found, weights))


def weiszfeld(products: Tensor, starting: Tensor, iterations: int, nu: float) -> Tensor:
    """Return the weights w of the geometric median, (m,)."""
    weights = shares(starting)
    floor = nu * float(products.diagonal().clamp(min=0).max().sqrt())
    if floor == 0:
        return weights
    for _ in range(iterations):
        inverse = 1 / distances_from(products, weights).clamp(min=floor)
        fresh = shares(starting * inverse)
        if float((fresh - weights).abs().max()) < 1e-12:
            return fresh
        weights = fresh
    return weights


def distances_from(products: Tensor, weights: Tensor) -> Tensor:
    """||x_i - sum_j w_j x_j|| from the products <x_i, x_j>, (m,)."""
    along = products @ weights
    return (products.diagonal() - 2 * along + weights @ along).clamp(min=0).sqrt()
