"""Directions that are combinations of the round's updates, and perhaps of earlier ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcraft.aggregators.base import Outcome
from fedcraft.aggregators.cohort import Cohort, Vector
from fedcraft.linalg import block_grams

__all__ = ["Combination", "joint_grams", "precise_joint_gram", "uniform_mean"]


@dataclass(frozen=True)
class Combination:
    """g^q = sum_i c[q, i] g_i^q + rest^q; one row of coefficients serves for all layers."""

    cohort: Cohort
    coefficients: Tensor
    rest: Tensor | None = None  # what earlier uploads add, in memory

    def vector(self, factor: float = 1.0) -> Vector:
        """Multiply out ``factor`` times g, in O(m d)."""
        scale = torch.full((len(self.cohort.layout),), factor, dtype=torch.float64)
        return self.cohort.combine(factor * self.coefficients, self.rest, scale)

    def dots(self) -> Tensor:
        """<g_i^q, g^q> by layer and client, from the Gram matrices."""
        rows = self.coefficients.expand(len(self.cohort.layout), -1).unsqueeze(-1)
        dots = (self.cohort.grams @ rows).squeeze(-1)
        return dots if self.rest is None else dots + self.cohort.dots(self.rest)

    def length(self) -> float:
        """||g||, measured on the vector itself: no digits are lost where terms cancel."""
        return float(torch.linalg.vector_norm(self.cohort.lengths(self.vector())))

    def outcome(self, factor: float = 1.0) -> Outcome:
        """Return ``factor`` times g as a rule's outcome.

        The certificate multiplies it out itself: the products from the Gram matrices would lose
        their digits where g is short beside its terms.
        """
        return Outcome(self.vector(factor))


def uniform_mean(cohort: Cohort) -> Combination:
    """mean_i g_i."""
    return Combination(cohort, torch.full((cohort.size,), 1 / cohort.size, dtype=torch.float64))


def precise_joint_gram(cohort: Cohort, earlier: Tensor | None, layer: int) -> Tensor:
    """One layer of :func:`joint_grams`, multiplied in float64."""
    if earlier is None:
        return cohort.precise_gram(layer)
    block = cohort.block(layer)
    rows = torch.cat([block, earlier[:, cohort.layout.slices[layer]].to(block)])
    return rows @ rows.T


def joint_grams(cohort: Cohort, earlier: Tensor | None) -> Tensor:
    """Gram matrices by layer of this round's rows followed by the earlier ones."""
    if earlier is None:
        return cohort.grams
    rows, slices = earlier.to(cohort.matrix), cohort.layout.slices
    blocks = [cohort.matrix[:, block] @ rows[:, block].T for block in slices]
    across = torch.stack(blocks).to("cpu", torch.float64)
    upper = torch.cat([cohort.grams, across], dim=2)
    lower = torch.cat([across.transpose(1, 2), block_grams(rows, slices)], dim=2)
    return torch.cat([upper, lower], dim=1)
