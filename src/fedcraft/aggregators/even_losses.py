"""Shared by FedLF and FedMDFG: the row that evens losses out, short points, step length."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from fedcraft.linalg import rounding

T = TypeVar("T")

_EQUAL = 1e-6
_CONFLICT = 1e-6


def even_losses(losses: Tensor) -> Tensor | None:
    """Return the unit h in the span of L and p = 1 / sqrt(m), orthogonal to L, away from p.

    With l = L / ||L|| it is the direction of <l, p> l - p: moving along sum_i h_i g_i turns the
    vector of losses towards equal entries. None where the losses are equal (or all zero): there h
    would be rounding noise, scaled to length one.
    """
    length = torch.linalg.vector_norm(losses)
    if length == 0:
        return None
    unit = losses / length
    equal = torch.full_like(unit, len(unit) ** -0.5)
    bend = torch.dot(unit, equal) * unit - equal
    size = torch.linalg.vector_norm(bend)
    return None if size < _EQUAL else bend / size


def with_care(
    dtype: torch.dtype,
    gram: Tensor,
    precise_gram: Callable[[], Tensor],
    solve: Callable[[Tensor, float], tuple[T, bool]],
) -> T:
    """Return ``solve(gram, shortest)``; float64 products decide where float32 ones cannot.

    ``solve`` treats relative squares up to ``shortest`` as zero, and also returns whether there
    were none.
    """
    answer, sure = solve(gram, rounding(dtype))
    if sure or dtype == torch.float64:
        return answer
    return solve(precise_gram(), rounding(dtype) ** 2)[0]


def rescale_factor(length: float, wanted: float, cosines: Tensor) -> float:
    """Return the factor that gives a direction of this length the wanted length.

    The factor is 1 if a row points against the direction by more than rounding: the direction then
    keeps its own, shortest length. The released code achieves the same by halving while
    <g_i, d> < -1e-6, an absolute bound; here the bound is on the cosine, so that scaling all
    updates scales the step.
    """
    if length == 0:
        return 0.0
    return 1.0 if bool((cosines < -_CONFLICT).any()) else wanted / length
