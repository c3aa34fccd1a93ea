"""What FedLF and FedMDFG share: the direction that evens losses out, and their step length."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["even_losses", "rescale_factor", "roundings"]

_EQUAL = 1e-6
_CONFLICT = 1e-6


def even_losses(losses: Tensor) -> Tensor | None:
    """Return the unit h in the span of L and p = 1 / sqrt(m), orthogonal to L, away from p.

    With l = L / ||L|| it is the direction of <l, p> l - p: moving along sum_i h_i g_i turns the
    vector of losses towards equal entries. None where the losses are equal (or all zero): there h
    would be the rounding of zero, blown up to length one.
    """
    length = torch.linalg.vector_norm(losses)
    if length == 0:
        return None
    unit = losses / length
    equal = torch.full_like(unit, len(unit) ** -0.5)
    bend = torch.dot(unit, equal) * unit - equal
    size = torch.linalg.vector_norm(bend)
    return None if size < _EQUAL else bend / size


def roundings(dtype: torch.dtype) -> float:
    """Return how far below its factors a product multiplied in ``dtype`` is rounding."""
    return 16 * torch.finfo(dtype).eps


def rescale_factor(length: float, wanted: float, cosines: Tensor) -> float:
    """Return the factor that gives a direction of this length the wanted one.

    1 if a row points against the direction by more than rounding: then its own, shortest length is
    kept. The released code reaches the same by halving while <g_i, d> < -1e-6, an absolute bound;
    here the bound is on the cosine, so that scaling all updates scales the step.
    """
    if length == 0:
        return 0.0
    return 1.0 if bool((cosines < -_CONFLICT).any()) else wanted / length
