"""A view of a cohort whose rows are selections, multiples or mixtures of another cohort's rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort, Terms, Vector
from fedcraft.updates import ClientId


@dataclass(frozen=True, kw_only=True)
class MixedCohort(Cohort):
    """Row i is sum_j A_ij x_j over the rows x_j of ``inner``, with A = ``mixing`` (m', m).

    The three products follow from those of ``inner``: A G A^T, A (X v) and X^T (A^T c). So rows are
    left out, shortened or averaged without a copy of them, wherever they are, and the Gram matrices
    of ``inner`` are computed only once. For a selection (rows of the unit matrix) the products have
    the same bits as those of the selected rows.
    """

    inner: Cohort
    mixing: Tensor  # (m', m) float64

    def __post_init__(self) -> None:
        if self.inner.layout is not self.layout:  # another division into layers, for both
            object.__setattr__(self, "inner", replace(self.inner, layout=self.layout))

    @property
    def dtype(self) -> torch.dtype:
        return self.inner.dtype

    @cached_property
    def grams(self) -> Tensor:
        return self.mixing @ self.inner.grams @ self.mixing.T

    def precise_gram(self, layer: int) -> Tensor:
        return self.mixing @ self.inner.precise_gram(layer) @ self.mixing.T

    def dots(self, vector: Vector) -> Tensor:
        return self.inner.dots(vector) @ self.mixing.T

    def precise_dots(self, layer: int, vector: Vector) -> Tensor:
        return self.mixing @ self.inner.precise_dots(layer, vector)

    def add_up(self, terms: Terms) -> Vector:
        mixed = terms.coefficients.to(self.mixing) @ self.mixing
        return self.inner.add_up(replace(terms, coefficients=mixed))

    def lengths(self, vector: Vector) -> Tensor:
        return self.inner.lengths(vector)

    def precise_length(self, layer: int, vector: Vector) -> float:
        return self.inner.precise_length(layer, vector)

    def scaled(
        self,
        vector: Vector,
        factors: Tensor,
        other: Vector | None = None,
        other_factor: float = 0.0,
    ) -> Vector:
        return self.inner.scaled(vector, factors, other, other_factor)

    def block(self, layer: int) -> Tensor | None:
        found = self.inner.block(layer)
        return None if found is None else self._mixed(found)

    @property
    def matrix(self) -> Tensor:
        return self._mixed(self.inner.matrix)

    def _mixed(self, rows: Tensor) -> Tensor:
        chosen = self.mixing.argmax(dim=1)
        units = torch.zeros_like(self.mixing)
        units[torch.arange(len(chosen)), chosen] = 1
        if torch.equal(units, self.mixing):
            return rows[chosen.to(rows.device)]
        return self.mixing.to(rows) @ rows

    def select(self, rows: Tensor, dropped: tuple[ClientId, ...] = ()) -> Self:
        return replace(super().select(rows, dropped), mixing=self.mixing[rows])
