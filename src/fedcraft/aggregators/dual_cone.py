"""Projection onto the dual cone of the updates, where no client is in conflict."""

from __future__ import annotations

from torch import Tensor

from fedcraft.linalg import unit_grams
from fedcraft.linalg.at_least import at_least_dual


def nearest_without_conflict(gram: Tensor, start: Tensor) -> Tensor:
    """Return w >= start so that J^T w is the vector nearest to J^T start with J J^T w >= 0.

    With unit rows U the answer is J^T start + U^T l, where l >= 0 solves the dual problem of
    ``linalg.at_least`` with the demand U g >= 0. Zero vectors are always allowed, so that the
    demand can be met; the problem is solved at the scale of its largest violation.
    """
    kernel, inverse = unit_grams(gram)
    violation = -inverse * (gram @ start)
    scale = violation.abs().max()
    if not bool((violation > 0).any()):
        return start
    multipliers = at_least_dual(kernel, violation / scale) * scale
    return start + inverse * multipliers
