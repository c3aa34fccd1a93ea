"""Projection onto the dual cone of the updates, where no client is in conflict."""

from __future__ import annotations

import torch
from torch import Tensor

from fedcraft.linalg import unit_grams
from fedcraft.linalg.at_least import at_least_duals


def nearest_without_conflict(gram: Tensor, starts: Tensor) -> Tensor:
    """Return w >= start, (c, m), for each start: J^T w is nearest to J^T start with J J^T w >= 0.

    With unit rows U the answer is J^T start + U^T l, where l >= 0 solves the dual problem of
    ``linalg.at_least`` with the demand U g >= 0. Zero vectors are always allowed, so that the
    demand can be met; every problem is solved at the scale of its largest violation.
    """
    kernel, inverse = unit_grams(gram)
    violations = -inverse * (starts @ gram)
    scales = violations.abs().amax(-1, keepdim=True)
    scaled = violations / torch.where(scales > 0, scales, 1)
    return starts + inverse * scales * at_least_duals(kernel, scaled)
