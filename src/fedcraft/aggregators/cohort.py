"""The cohort: one round's clients, and the products of their updates that a rule may ask for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from fedcraft.aggregators.disk.disk_vector import DiskVector
from fedcraft.errors import InputError, StateError
from fedcraft.linalg import (
    block_combine,
    block_dots,
    block_grams,
    block_square_norms,
    layer_combine,
    layer_dots,
    layer_gram,
    shares,
)
from fedcraft.updates import ClientId, Layout

Vector = Tensor | DiskVector
"""A flat vector of d coordinates, wherever the cohort keeps such vectors."""


@dataclass(frozen=True)
class Terms:
    """The terms of f (sum_i c[q, i] x_i^q + s[q] b^q) for every layer q."""

    coefficients: Tensor  # c: (Q, m), or (m,) for all layers alike
    base: Vector | None  # b; None for zero
    base_scale: Tensor  # s: (Q,)
    factor: float  # f
    precise: Collection[int]  # the layers to add up in float64, because their terms cancel


@dataclass(frozen=True, kw_only=True)
class Cohort(ABC):
    """All that a rule sees of a round, after every check.

    With X_q the (m, d_q) block of the updates in layer q, a rule asks for three products: the Gram
    matrices ``grams`` = X_q X_q^T, ``dots(v)`` = X_q v^q and ``combine(c)`` = X_q^T c. So a rule
    does not depend on where the rows are: a subclass implements ``grams``, ``dots``, ``add_up`` and
    ``dtype``, and may offer more precise versions. Vectors are tensors here; a subclass that keeps
    them elsewhere also implements ``lengths``, ``precise_length`` and ``scaled``.
    """

    layout: Layout
    client_ids: tuple[ClientId, ...]
    weights: Tensor  # (m,) float64, with sum one
    losses: Tensor | None = None
    steps: Tensor | None = None
    client_lr: float | None = None
    dropped: tuple[ClientId, ...] = ()

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of the updates, which determines the rounding of every product."""

    @property
    @abstractmethod
    def grams(self) -> Tensor:
        """Gram matrices X_q X_q^T by layer, (Q, m, m) float64."""

    @abstractmethod
    def dots(self, vector: Vector) -> Tensor:
        """<x_i^q, v^q> for every layer and client, (Q, m) float64."""

    @abstractmethod
    def add_up(self, terms: Terms) -> Vector:
        """Return the sum of ``terms`` as a new vector."""

    def combine(
        self,
        coefficients: Tensor,
        base: Vector | None = None,
        base_scale: Tensor | None = None,
        *,
        factor: float = 1.0,
        precise: Collection[int] = (),
    ) -> Vector:
        """f (sum_i c[q, i] x_i^q + s[q] b^q) for every layer q, with s = 1 if it is left out.

        See :class:`Terms`.
        """
        scale = torch.ones(len(self.layout)) if base_scale is None else base_scale
        return self.add_up(Terms(coefficients, base, scale, factor, precise))

    def precise_gram(self, layer: int) -> Tensor:
        """X_q X_q^T, as precise as possible."""
        return self.grams[layer]

    def precise_dots(self, layer: int, vector: Vector) -> Tensor:
        """<x_i^q, v^q> for one layer, (m,), as precise as possible."""
        return self.dots(vector)[layer]

    def precise_length(self, layer: int, vector: Vector) -> float:
        """||v^q|| for one layer."""
        part = in_memory(vector)[self.layout.slices[layer]]
        return float(torch.linalg.vector_norm(part, dtype=torch.float64))

    def block(self, layer: int) -> Tensor | None:
        """X_q, if the rows are float64 and in memory: their squares would lose digits."""
        return None

    @property
    def measures_precisely(self) -> bool:
        """Whether ``precise_dots`` looks at the rows again, in more digits than ``dots``."""
        return type(self).precise_dots is not Cohort.precise_dots

    @property
    def matrix(self) -> Tensor:
        """The updates (m, d), for rules that need more than the products."""
        raise InputError(
            "updates: this rule needs the updates in memory, and the cohort does not hold them; "
            "load them and call aggregate"
        )

    @property
    def size(self) -> int:
        """Number of clients m."""
        return len(self.client_ids)

    @property
    def dimension(self) -> int:
        return self.layout.dimension

    @cached_property
    def gram(self) -> Tensor:
        """Gram matrix of whole updates, (m, m) float64."""
        return self.grams.sum(0)

    @cached_property
    def square_norms(self) -> Tensor:
        """||x_i^q||^2, (Q, m) float64."""
        return torch.diagonal(self.grams, dim1=1, dim2=2).clamp(min=0)

    @property
    def knows_grams(self) -> bool:
        """Tell whether the Gram matrices were computed already, and are free."""
        return "grams" in self.__dict__

    def average_dots(self) -> Tensor:
        """<x_i^q, a^q> with a the weighted average, (Q, m) float64."""
        return self.grams @ self.weights

    def lengths(self, vector: Vector) -> Tensor:
        """||v^q|| by layer, (Q,) float64."""
        # A float32 sum over a large layer would be off in the sixth digit.
        layers = torch.split_with_sizes(in_memory(vector), self.layout.sizes)
        parts = (layer.to(torch.float64) for layer in layers)  # one after the other, in the cache
        return torch.stack([torch.dot(part, part) for part in parts]).sqrt().to("cpu")

    def scaled(
        self,
        vector: Vector,
        factors: Tensor,
        other: Vector | None = None,
        other_factor: float = 0.0,
    ) -> Vector:
        """f[q] v^q by layer, plus a multiple of another vector: always a new vector."""
        layers = torch.split_with_sizes(in_memory(vector), self.layout.sizes)
        pairs = zip(layers, factors.tolist(), strict=True)
        result = torch.cat([layer * factor for layer, factor in pairs])
        if other is None:
            return result
        return result.add_(in_memory(other).to(result), alpha=other_factor)

    def select(self, rows: Tensor, dropped: tuple[ClientId, ...] = ()) -> Self:
        """The same round with only these rows, weights renormalised over them."""
        return replace(
            self,
            client_ids=tuple(self.client_ids[i] for i in rows.tolist()),
            weights=shares(self.weights[rows]),
            losses=None if self.losses is None else self.losses[rows],
            steps=None if self.steps is None else self.steps[rows],
            dropped=(*self.dropped, *dropped),
        )


def in_memory(vector: Vector) -> Tensor:
    """Return a vector that must be a tensor; one that an earlier round left in a file is not."""
    if isinstance(vector, Tensor):
        return vector
    raise StateError(
        "state: the last round was aggregated from files, and its step is stored there; "
        "continue with aggregate_files, or call reset() to start again"
    )


@dataclass(frozen=True, kw_only=True)
class MemoryCohort(Cohort):
    """A cohort whose updates are one (m, d) tensor."""

    updates: Tensor

    @property
    def matrix(self) -> Tensor:
        return self.updates

    @property
    def dtype(self) -> torch.dtype:
        return self.updates.dtype

    @cached_property
    def grams(self) -> Tensor:
        return block_grams(self.updates, self.layout.slices)

    @cached_property
    def square_norms(self) -> Tensor:
        if self.knows_grams:
            return super().square_norms
        return block_square_norms(self.updates, self.layout.slices)

    def average_dots(self) -> Tensor:
        if self.knows_grams:
            return super().average_dots()
        return self.dots(self.combine(self.weights))

    def precise_gram(self, layer: int) -> Tensor:
        return layer_gram(self._rows(layer))

    def block(self, layer: int) -> Tensor | None:
        return self._rows(layer).cpu() if self.dtype == torch.float64 else None

    def _rows(self, layer: int) -> Tensor:
        return self.updates[:, self.layout.slices[layer]]

    def dots(self, vector: Vector) -> Tensor:
        asked = in_memory(vector).to(self.updates)
        if not any(torch.equal(known, asked) for known, _ in self._latest_dots):
            products = block_dots(self.updates, asked, self.layout.slices)
            self._latest_dots[:] = [(asked.clone(), products)]
        return self._latest_dots[0][1]

    @cached_property
    def _latest_dots(self) -> list[tuple[Tensor, Tensor]]:
        """The last vector and its products: a guard and its rule both ask for the last step's."""
        return []

    def precise_dots(self, layer: int, vector: Vector) -> Tensor:
        return layer_dots(self._rows(layer), in_memory(vector)[self.layout.slices[layer]])

    def add_up(self, terms: Terms) -> Tensor:
        slices, factor, scale = self.layout.slices, terms.factor, terms.base_scale
        rows = terms.coefficients.expand(len(slices), -1)
        base = None if terms.base is None else in_memory(terms.base)
        if base is None and terms.coefficients.ndim == 1:
            result = torch.mv(self.updates.T, (factor * terms.coefficients).to(self.updates))
        else:
            rough = factor * rows
            for layer in terms.precise:  # added up below
                rough[layer] = 0
            term = None if base is None else base.to(self.updates)
            result = block_combine(self.updates, rough, slices, term, factor * scale)
        for layer in terms.precise:
            total = layer_combine(self._rows(layer), rows[layer])
            if base is not None:
                total = total + float(scale[layer]) * base[slices[layer]].to(total)
            result[slices[layer]] = factor * total
        return result

    def finite_rows(self) -> Tensor:
        """Which updates hold neither NaN nor Inf, (m,) bool."""
        # A row's sum is finite unless an entry is not or the sum overflows: only then look closer.
        finite = torch.isfinite(self.updates.sum(dim=1)).cpu()
        for row in torch.nonzero(~finite).flatten().tolist():
            finite[row] = bool(torch.isfinite(self.updates[row]).all())
        return finite

    def select(self, rows: Tensor, dropped: tuple[ClientId, ...] = ()) -> Self:
        kept = super().select(rows, dropped)
        return replace(kept, updates=self.updates[rows.to(self.updates.device)])
