"""Directions that are combinations of the round's updates, and perhaps of earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedcraft.aggregators.base import Outcome
from fedcraft.aggregators.cohort import Cohort, Vector
from fedcraft.linalg import block_grams

__all__ = ["Combination", "earlier_part", "joint_grams", "precise_joint_gram", "uniform_mean"]


_CANCELLING = 100  # times shorter than its terms: two of float32's seven digits


@dataclass(frozen=True)
class Combination:
    """g^q = sum_i c[q, i] g_i^q + rest^q; one row of coefficients serves for all layers."""

    cohort: Cohort
    coefficients: Tensor
    rest: Tensor | None = None  # what earlier uploads add, in memory

    def vector(self, factor: float = 1.0) -> Vector:
        """Multiply out ``factor`` times g, in O(m d); in float64 where float32 would lose it."""
        scale = torch.full((len(self.cohort.layout),), factor, dtype=torch.float64)
        vector = self.cohort.combine(factor * self.coefficients, self.rest, scale)
        if self.cohort.in_memory:  # on disk ``combine`` does it
            for layer in self._cancelling:
                vector[self.cohort.layout.slices[layer]] = factor * self._precise(layer)
        return vector

    def dots(self) -> Tensor:
        """<g_i^q, g^q> by layer and client, from the Gram matrices where they can tell."""
        dots = self._rough_dots.clone()
        if self._cancelling:
            vector = self.vector()
            for layer in self._cancelling:
                dots[layer] = self.cohort.layer_dots(layer, vector)
        return dots

    @property
    def _rows(self) -> Tensor:
        return self.coefficients.expand(len(self.cohort.layout), -1)

    @cached_property
    def _rest_dots(self) -> Tensor:
        return torch.zeros(()) if self.rest is None else self.cohort.dots(self.rest)

    @cached_property
    def _rough_dots(self) -> Tensor:
        return (self.cohort.grams @ self._rows.unsqueeze(-1)).squeeze(-1) + self._rest_dots

    @cached_property
    def _cancelling(self) -> list[int]:
        """The layers where g is so short beside its terms that float32 would lose it."""
        if self.cohort.matrix.dtype == torch.float64:
            return []
        terms = (self._rows.abs() * self.cohort.square_norms.sqrt()).sum(-1)
        squares = (self._rows * (self._rough_dots + self._rest_dots)).sum(-1)
        if self.rest is not None:
            lengths = self.cohort.lengths(self.rest)
            terms, squares = terms + lengths, squares + lengths.square()
        short = terms > _CANCELLING * squares.clamp(min=0).sqrt()
        return torch.nonzero(short).flatten().tolist()

    def _precise(self, layer: int) -> Tensor:
        part = self.cohort.block(layer).T @ self._rows[layer]
        if self.rest is None:
            return part
        return part + self.rest[self.cohort.layout.slices[layer]].to(part)

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


def earlier_part(rows: Tensor, coefficients: Tensor, slices: Sequence[slice]) -> Tensor:
    """sum_i c[q, i] x_i^q of earlier rows, in float64: this round's may leave little of it.

    Row by row, so that nothing but the sum is held in float64.
    """
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for row, weights in zip(rows, coefficients.T.tolist(), strict=True):
        for block, weight in zip(slices, weights, strict=True):
            if weight:
                total[block].add_(row[block].to("cpu"), alpha=weight)
    return total


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
