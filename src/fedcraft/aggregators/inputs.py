"""Checks the arguments of one round: errors name the argument; NaN and Inf raise or drop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort, MemoryCohort
from fedcraft.errors import InputError, NonFiniteError, require
from fedcraft.linalg import shares
from fedcraft.updates import (
    ClientId,
    Layout,
    Updates,
    as_layout,
    float_tensor,
    numbers,
    whole_number,
)

ArrayLike = Tensor | npt.NDArray[np.floating] | Updates | Sequence[Sequence[float]]
Numbers = Sequence[float] | Tensor | npt.NDArray[np.floating] | None
Rows = TypeVar("Rows", bound=Cohort)


class Facts(TypedDict):
    """The fields of a cohort that do not depend on where its rows are."""

    layout: Layout
    client_ids: tuple[ClientId, ...]
    weights: Tensor
    losses: Tensor | None
    steps: Tensor | None
    client_lr: float | None


@dataclass(frozen=True)
class RoundInput:
    """The caller's arguments about a round's clients, unchecked."""

    weights: Numbers = None
    layers: object = None
    client_ids: Sequence[ClientId] | None = None
    losses: Numbers = None
    steps: Numbers = None
    client_lr: float | None = None

    def facts(self, count: int, dimension: int) -> Facts:
        """Return the fields of a cohort of ``count`` clients, each checked."""
        return Facts(
            layout=as_layout(self.layers, dimension),
            client_ids=_client_ids(self.client_ids, count),
            weights=_weights(self.weights, count),
            losses=None if self.losses is None else _vector("losses", self.losses, count),
            steps=None if self.steps is None else _vector("steps", self.steps, count),
            client_lr=_client_lr(self.client_lr),
        )


def read_cohort(updates: ArrayLike, given: RoundInput, *, drop_nonfinite: bool) -> MemoryCohort:
    """Return the cohort that the arguments of ``aggregate`` describe, or name a wrong one."""
    if isinstance(updates, Updates):
        given = replace(
            given,
            weights=updates.weights if given.weights is None else given.weights,
            layers=updates.layout if given.layers is None else given.layers,
            client_ids=updates.client_ids if given.client_ids is None else given.client_ids,
        )
        updates = updates.matrix
    plain = isinstance(updates, list | tuple)
    matrix = numbers("updates", updates) if plain else float_tensor("updates", updates)
    _check_matrix(matrix)
    cohort = MemoryCohort(updates=matrix, **given.facts(*matrix.shape))
    return without_nonfinite(cohort, cohort.finite_rows(), drop=drop_nonfinite)


def without_nonfinite(cohort: Rows, finite_rows: Tensor, *, drop: bool) -> Rows:
    """Return the cohort without clients whose update or report holds NaN or Inf, or raise."""
    judged = {"updates": finite_rows}
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


def _check_matrix(matrix: Tensor) -> None:
    if matrix.ndim != 2:
        raise InputError(
            f"updates: expected a (clients, coordinates) matrix, found shape {tuple(matrix.shape)}"
        )
    if matrix.shape[0] == 0:
        raise InputError("updates: the cohort is empty; at least one client must take part")
    if matrix.shape[1] == 0:
        raise InputError("updates: expected at least one coordinate, found none")


def _client_ids(ids: Sequence[ClientId] | None, count: int) -> tuple[ClientId, ...]:
    if ids is None:
        return tuple(range(count))
    listed = isinstance(ids, Iterable) and not isinstance(ids, str)
    require(listed, "client_ids", f"a sequence of {count}", ids)
    plain = tuple(i if isinstance(i, str) else whole_number("client_ids", i) for i in ids)
    if len(plain) != count:
        raise InputError(f"client_ids: expected {count}, one per row, found {len(plain)}")
    if len(set(plain)) != count:
        raise InputError("client_ids: expected distinct ids, found some twice; give one per row")
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
        raise NonFiniteError("weights: expected data sizes >= 0, found NaN or Inf")
    if bool((weights < 0).any()):
        raise InputError(f"weights: expected >= 0, found {float(weights.min())}")
    if not bool(torch.isfinite(weights.sum())):
        weights = weights / weights.max()
    return shares(weights)


def _client_lr(value: float | None) -> float | None:
    if value is None:
        return None
    rate = numbers("client_lr", value)
    fine = rate.ndim == 0 and bool(torch.isfinite(rate)) and bool(rate > 0)
    require(fine, "client_lr", "a positive number", value)
    return float(rate)
