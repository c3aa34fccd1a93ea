"""Points of the probability simplex."""

from __future__ import annotations

import torch
from torch import Tensor


def shares(weights: Tensor) -> Tensor:
    """Return weights >= 0 divided by their sum; equal shares if they are all zero."""
    total = weights.sum()
    return weights / total if total > 0 else torch.full_like(weights, 1 / len(weights))


def project_simplex(point: Tensor) -> Tensor:
    """Return argmin ||x - y|| over x >= 0, sum x = 1.

    With u = y sorted downwards and k the last j with u_j + (1 - sum_{s<=j} u_s) / j > 0, the answer
    is max(y + (1 - sum_{s<=k} u_s) / k, 0). Cost O(n log n). The sum must include u_j itself:
    leaving it out (as some published code does) gives points that do not sum to one.

    >>> project_simplex(torch.tensor([0.9, 0.9, -1.0]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    point = point - point.max()  # the same answer, but a sum of huge entries does not lose the one
    descending = torch.sort(point, descending=True).values
    counts = torch.arange(1, len(point) + 1, dtype=point.dtype, device=point.device)
    shifts = (1 - descending.cumsum(0)) / counts
    last = int(torch.nonzero(descending + shifts > 0)[-1])
    return (point + shifts[last]).clamp(min=0)
