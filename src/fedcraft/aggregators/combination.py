"""Directions as coefficients on the round's updates, and their accurate evaluation.

Where terms cancel, float32 sums and products from Gram matrices have no correct digits left. This
module finds such layers, sums them in float64 and measures the products on the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort, Vector, in_memory
from fedcraft.linalg import WIDEST, Constraint, Projection, apply, cancels, project

_NARROW = 1024


@dataclass(frozen=True)
class Offset:
    """s[q] b^q for every layer q: a vector besides the round's updates; may be zero."""

    cohort: Cohort
    vector: Vector | None  # b; None for zero
    scale: Tensor  # (Q,): s
    lengths: Tensor  # (Q,): ||b^q||

    @classmethod
    def of(cls, cohort: Cohort, vector: Vector | None = None) -> Offset:
        """Return a vector with scale one, or zero."""
        ones = torch.ones(len(cohort.layout), dtype=torch.float64)
        lengths = torch.zeros_like(ones) if vector is None else cohort.lengths(vector)
        return cls(cohort, vector, ones, lengths)

    @cached_property
    def dots(self) -> Tensor:
        """<x_i^q, s b^q>, (Q, m)."""
        if self.vector is None:
            return torch.zeros(len(self.scale), self.cohort.size, dtype=torch.float64)
        return self.scale.unsqueeze(-1) * self.cohort.dots(self.vector)

    def times(self, factors: Tensor) -> Offset:
        """Return the vector with layer q times ``factors[q]``; no product is computed again."""
        scaled = replace(self, scale=self.scale * factors)
        scaled.__dict__["dots"] = self.dots * factors.unsqueeze(-1)
        return scaled

    @property
    def squares(self) -> Tensor:
        """||s b^q||^2, (Q,)."""
        return (self.scale * self.lengths).square()

    def __add__(self, correction: Combination) -> Combination:
        return replace(correction, offset=self, share=correction.share + 1)


@dataclass(frozen=True)
class Combination:
    """g^q = sum_i c[q, i] x_i^q + share[q] offset^q + vectors[q] for every layer q."""

    cohort: Cohort
    coefficients: Tensor  # (Q, m), or (m,) for all layers alike
    offset: Offset
    share: Tensor  # (Q,)
    vectors: dict[int, Tensor] = field(default_factory=dict)  # float64, in memory
    products: dict[int, Tensor] = field(default_factory=dict)  # <x_i, X^T c>, (m,), where measured
    careful: tuple[int, ...] = ()  # layers to treat like those where terms cancel

    @classmethod
    def of(cls, cohort: Cohort, coefficients: Tensor, rest: Vector | None = None) -> Combination:
        """sum_i c[q, i] x_i^q, plus the rest."""
        offset = Offset.of(cohort, rest)
        return cls(cohort, coefficients, offset, torch.ones_like(offset.scale))

    def vector(self, factor: float = 1.0) -> Vector:
        """Multiply out ``factor`` times g, in O(m d), in float64 where float32 loses digits."""
        return self._vector if factor == 1.0 else self._multiplied(factor)

    def _multiplied(self, factor: float) -> Vector:
        vector = self.cohort.combine(
            self.coefficients,
            self.offset.vector,
            self.offset.scale * self.share,
            factor=factor,
            precise=[layer for layer in self._careful if layer not in self.vectors],
        )
        for layer, part in self.vectors.items():
            block = in_memory(vector)[self.cohort.layout.slices[layer]]
            block += factor * part.to(block.device)
        return vector

    def dots(self) -> Tensor:
        """<x_i^q, g^q>, (Q, m): from the Gram matrices where they are precise enough."""
        dots = self._rough_dots.clone()
        for layer in set(self._careful) - self.products.keys():
            dots[layer] = self.cohort.precise_dots(layer, self._vector)
        return dots

    def squares(self) -> Tensor:
        """||g^q||^2, (Q,): likewise."""
        squares = self._rough_squares.clone()
        for layer in self._careful:
            squares[layer] = self.cohort.precise_length(layer, self._vector) ** 2
        return squares

    def length(self) -> float:
        """||g||, computed from the vector itself, so that cancelling terms lose no digits."""
        return float(torch.linalg.vector_norm(self.cohort.lengths(self._vector)))

    @cached_property
    def _vector(self) -> Vector:
        return self._multiplied(1.0)

    @property
    def _rows(self) -> Tensor:
        return self.coefficients.expand(len(self.cohort.layout), -1)

    @cached_property
    def _offset_dots(self) -> Tensor:
        return self.offset.dots * self.share.unsqueeze(-1)

    @cached_property
    def _rough_dots(self) -> Tensor:
        own = apply(self.cohort.grams, self._rows)
        for layer, measured in self.products.items():
            own[layer] = measured
        return own + self._offset_dots

    @cached_property
    def _rough_squares(self) -> Tensor:
        """<sum_i c_i x_i + b, g> by layer, from products that are known already."""
        along = (self._rows * self.offset.dots).sum(-1) + self.share * self.offset.squares
        return ((self._rows * self._rough_dots).sum(-1) + self.share * along).clamp(min=0)

    @cached_property
    def _careful(self) -> list[int]:
        if self.cohort.dtype == torch.float64:
            return list(self.careful)
        terms = (self._rows.abs() * self.cohort.square_norms.sqrt()).sum(-1)
        terms = terms + self.offset.squares.sqrt()
        cancelling = torch.nonzero(cancels(terms, self._rough_squares)).flatten().tolist()
        return sorted({*self.careful, *cancelling})


def uniform_mean(cohort: Cohort) -> Combination:
    """mean_i g_i."""
    equal = torch.full((cohort.size,), 1 / cohort.size, dtype=torch.float64)
    return Combination.of(cohort, equal)


def correction(
    cohort: Cohort,
    targets: Tensor,
    reference: Offset,
    *,
    constraint: Constraint = "equal",
    tau: float = 0.0,
    eps: float = 0.0,
    renormalise: bool = True,
    widest: float = WIDEST,
    gain: float | None = None,
) -> tuple[Combination, Projection]:
    """Return Delta^q = (U^q)^+ (rho - U^q r^q) by layer (eq. 4.7): see ``linalg.project``."""
    nothing = torch.zeros(len(cohort.layout), dtype=torch.float64)

    def measure(coefficients: Tensor, layers: Sequence[int]) -> dict[int, Tensor]:
        narrow = [layer for layer in layers if cohort.layout.sizes[layer] < _NARROW]
        g = cohort.combine(coefficients, reference.vector, reference.scale, precise=narrow)
        return {layer: cohort.precise_dots(layer, g) for layer in layers}

    found = project(
        cohort.grams,
        targets,
        reference.dots,
        constraint=constraint,
        tau=tau,
        eps=eps,
        renormalise=renormalise,
        dtype=cohort.dtype,
        widths=cohort.layout.sizes,
        widest=widest,
        gain=gain,
        precise_gram=cohort.precise_gram,
        block=cohort.block,
        measure=measure if cohort.measures_precisely else None,
        square_norms=cohort.square_norms,
    )
    delta = Combination(cohort, found.coefficients, reference, nothing, found.vectors)
    inexact = torch.nonzero(~found.trusted).flatten().tolist()
    # In a narrow layer the roundings of a sum do not cancel out in its products.
    careful = [q for q in inexact if q not in found.products or cohort.layout.sizes[q] < _NARROW]
    return replace(delta, products=found.products, careful=tuple(careful)), found
