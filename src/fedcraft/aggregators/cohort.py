"""What an aggregation rule sees: one round's checked updates and the products it may ask for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedcraft.errors import InputError, NonFiniteError, require
from fedcraft.linalg import block_combine, block_dots, block_grams, block_square_norms
from fedcraft.updates import (
    ClientId,
    Layout,
    Updates,
    as_layout,
    float_tensor,
    numbers,
    whole_number,
)

__all__ = ["ArrayLike", "Cohort", "RoundInput", "Vector", "without_nonfinite"]

ArrayLike = Tensor | npt.NDArray[np.floating] | Updates
Vector = Any  # a flat tensor of d coordinates, or what stands for one on disk
Numbers = Sequence[float] | Tensor | npt.NDArray[np.floating] | None


@dataclass(frozen=True)
class Cohort:
    """The clients that take part, after checks: weights sum to one, every number is finite.

    A rule that touches the m x d data only through this object's methods also works where the data
    lie on disk.
    """

    matrix: Tensor
    layout: Layout
    client_ids: tuple[ClientId, ...]
    weights: Tensor
    losses: Tensor | None = None
    steps: Tensor | None = None
    client_lr: float | None = None
    dropped: tuple[ClientId, ...] = ()

    @property
    def size(self) -> int:
        """Number of clients m."""
        return self.matrix.shape[0]

    @property
    def dimension(self) -> int:
        return self.matrix.shape[1]

    @property
    def in_memory(self) -> bool:
        return not self.matrix.is_meta

    @cached_property
    def grams(self) -> Tensor:
        """Gram matrices X_q X_q^T by layer, (Q, m, m) float64, computed once."""
        return block_grams(self.matrix, self.layout.slices)

    @cached_property
    def gram(self) -> Tensor:
        """Gram matrix of whole updates, (m, m) float64."""
        return self.grams.sum(0)

    @cached_property
    def square_norms(self) -> Tensor:
        """||x_i^q||^2, (Q, m) float64; free where the Gram matrices are there already."""
        if "grams" in self.__dict__:
            return torch.diagonal(self.grams, dim1=1, dim2=2).clamp(min=0)
        return block_square_norms(self.matrix, self.layout.slices)

    def precise_gram(self, layer: int) -> Tensor:
        """X_q X_q^T multiplied in float64."""
        block = self.block(layer)
        return block @ block.T

    def block(self, layer: int) -> Tensor:
        """X_q as float64."""
        return self.matrix[:, self.layout.slices[layer]].to("cpu", torch.float64)

    def dots(self, vector: Vector) -> Tensor:
        """<x_i^q, v^q> for every layer and client, (Q, m) float64."""
        return block_dots(self.matrix, vector.to(self.matrix), self.layout.slices)

    def layer_dots(self, layer: int, vector: Vector) -> Tensor:
        """<x_i^q, v^q> for one layer, (m,), multiplied in float64."""
        part = vector[self.layout.slices[layer]].to("cpu", torch.float64)
        return torch.mv(self.block(layer), part)

    def layer_length(self, layer: int, vector: Vector) -> float:
        """||v^q|| for one layer."""
        part = vector[self.layout.slices[layer]]
        return float(torch.linalg.vector_norm(part, dtype=torch.float64))

    def finite_rows(self) -> Tensor:
        """Which updates hold neither NaN nor Inf, (m,) bool."""
        # A row's sum is finite unless an entry is not or the sum overflows: only then look closer.
        finite = torch.isfinite(self.matrix.sum(dim=1)).cpu()
        for row in torch.nonzero(~finite).flatten().tolist():
            finite[row] = bool(torch.isfinite(self.matrix[row]).all())
        return finite

    def average_dots(self) -> Tensor:
        """<x_i^q, a^q> with a the weighted average, (Q, m) float64."""
        if "grams" in self.__dict__:
            return self.grams @ self.weights
        return self.dots(self.combine(self.weights))

    def lengths(self, vector: Vector) -> Tensor:
        """||v^q|| by layer, (Q,) float64."""
        # A float32 sum over a large layer would be off in the sixth digit.
        parts = [
            part.to(torch.float64) for part in torch.split_with_sizes(vector, self.layout.sizes)
        ]
        return torch.stack([torch.dot(part, part) for part in parts]).sqrt().to("cpu")

    def rescaled(self, vector: Vector, factors: Tensor) -> Vector:
        """f[q] v^q by layer, in the place of v: for a direction that is still being made."""
        for block, factor in zip(self.layout.slices, factors.tolist(), strict=True):
            if factor != 1:
                vector[block] *= factor
        return vector

    def scaled(
        self, vector: Vector, factors: Tensor, other: Vector = None, other_factor: float = 0.0
    ) -> Vector:
        """f[q] v^q by layer, plus a multiple of another vector: always a new vector."""
        parts = zip(self.layout.slices, factors.tolist(), strict=True)
        result = torch.cat([vector[block] * factor for block, factor in parts])
        return result if other is None else result.add_(other.to(result), alpha=other_factor)

    def combine(
        self, coefficients: Tensor, base: Vector = None, base_scale: Tensor | None = None
    ) -> Vector:
        """sum_i c_i x_i (+ s b): one row of coefficients for all layers, or (Q, m) by layer."""
        if coefficients.ndim == 1 and base is None:
            return torch.mv(self.matrix.T, coefficients.to(self.matrix))
        rows = coefficients.expand(len(self.layout), -1)
        base = None if base is None else base.to(self.matrix)
        return block_combine(self.matrix, rows, self.layout.slices, base, base_scale)

    def select(self, rows: Tensor, dropped: tuple[ClientId, ...] = ()) -> Cohort:
        """The same round with only these rows, weights renormalised over them."""
        weights = self.weights[rows]
        total = weights.sum()
        return replace(
            self,
            matrix=self.matrix[rows.to(self.matrix.device)],
            client_ids=tuple(self.client_ids[i] for i in rows.tolist()),
            weights=weights / total if total > 0 else torch.full_like(weights, 1 / len(rows)),
            losses=None if self.losses is None else self.losses[rows],
            steps=None if self.steps is None else self.steps[rows],
            dropped=(*self.dropped, *dropped),
        )


@dataclass(frozen=True)
class RoundInput:
    """The raw arguments of ``aggregate``, as the caller gave them."""

    updates: ArrayLike
    weights: Numbers = None
    layers: object = None
    client_ids: Sequence[ClientId] | None = None
    losses: Numbers = None
    steps: Numbers = None
    client_lr: float | None = None

    def check(self, *, drop_nonfinite: bool) -> Cohort:
        """Return the cohort these arguments describe, or say what is wrong with them."""
        return without_nonfinite(Cohort(**self.fields()), drop=drop_nonfinite)

    def fields(self) -> dict[str, Any]:
        """Return the cohort's fields, each checked but for NaN and Inf in the rows."""
        matrix, layers, ids, weights = self._unpack()
        _check_matrix(matrix)
        count, dimension = matrix.shape
        return {
            "matrix": matrix,
            "layout": as_layout(layers, dimension),
            "client_ids": _client_ids(ids, count),
            "weights": _weights(weights, count),
            "losses": _optional("losses", self.losses, count),
            "steps": _optional("steps", self.steps, count),
            "client_lr": _client_lr(self.client_lr),
        }

    def _unpack(self) -> tuple[Tensor, object, Sequence[ClientId] | None, Numbers]:
        given = self.updates
        if not isinstance(given, Updates):
            return float_tensor("updates", given), self.layers, self.client_ids, self.weights
        return (
            float_tensor("updates", given.matrix),
            given.layout if self.layers is None else self.layers,
            given.client_ids if self.client_ids is None else self.client_ids,
            given.weights if self.weights is None else self.weights,
        )


def _check_matrix(matrix: Tensor) -> None:
    if matrix.ndim != 2:
        raise InputError(
            f"updates: expected a (clients, coordinates) matrix, found shape {tuple(matrix.shape)}"
        )
    if matrix.shape[0] == 0:
        raise InputError("updates: the cohort is empty; at least one client must take part")
    if matrix.shape[1] == 0:
        raise InputError("updates: they have no coordinates")


def _client_ids(ids: Sequence[ClientId] | None, count: int) -> tuple[ClientId, ...]:
    if ids is None:
        return tuple(range(count))
    listed = isinstance(ids, Iterable) and not isinstance(ids, str)
    require(listed, "client_ids", f"a sequence of {count}", ids)
    plain = tuple(i if isinstance(i, str) else whole_number("client_ids", i) for i in ids)
    if len(plain) != count:
        raise InputError(f"client_ids: expected {count}, one per row, found {len(plain)}")
    if len(set(plain)) != count:
        raise InputError("client_ids: they must differ; a client may send one update a round")
    return plain


def _vector(name: str, values: Numbers, count: int) -> Tensor:
    vector = numbers(name, values)
    if vector.shape != (count,):
        raise InputError(
            f"{name}: expected {count} numbers, one per row, found shape {tuple(vector.shape)}"
        )
    return vector


def _weights(values: Numbers, count: int) -> Tensor:
    if values is None:
        return torch.full((count,), 1 / count, dtype=torch.float64)
    weights = _vector("weights", values, count)
    if not bool(torch.isfinite(weights).all()):
        raise NonFiniteError("weights: they hold NaN or Inf; give data sizes >= 0")
    if bool((weights < 0).any()):
        raise InputError(f"weights: expected >= 0, found {float(weights.min())}")
    total = weights.sum()
    if total == 0:
        raise InputError("weights: they are all zero; leave them out for equal weights")
    if not bool(torch.isfinite(total)):
        weights = weights / weights.max()
        total = weights.sum()
    return weights / total


def _optional(name: str, values: Numbers, count: int) -> Tensor | None:
    return None if values is None else _vector(name, values, count)


def _client_lr(value: float | None) -> float | None:
    if value is None:
        return None
    rate = numbers("client_lr", value)
    fine = rate.ndim == 0 and bool(torch.isfinite(rate)) and bool(rate > 0)
    require(fine, "client_lr", "a positive number", value)
    return float(rate)


def without_nonfinite(cohort: Cohort, *, drop: bool) -> Cohort:
    """Return the cohort without clients whose update or report holds NaN or Inf, or raise."""
    judged = {"updates": cohort.finite_rows()}
    for name, values in (("losses", cohort.losses), ("steps", cohort.steps)):
        if values is not None:
            judged[name] = torch.isfinite(values)
    finite = torch.stack(list(judged.values())).all(dim=0)
    if bool(finite.all()):
        return cohort
    bad = tuple(i for i, ok in zip(cohort.client_ids, finite.tolist(), strict=True) if not ok)
    if not drop or not bool(finite.any()):
        culprits = ", ".join(name for name, fine in judged.items() if not bool(fine.all()))
        raise NonFiniteError(
            f"{culprits}: NaN or Inf from client(s) {list(bad)}; "
            "use nonfinite='drop' to leave such clients out of the round"
        )
    return cohort.select(torch.nonzero(finite).flatten(), bad)
