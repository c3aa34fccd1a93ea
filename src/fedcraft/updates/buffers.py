"""Merges buffers: they are never part of the geometry, so they need a separate policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from fedcraft.errors import InputError
from fedcraft.updates.reading import numbers

BufferPolicy = Literal["mean", "keep"]


def merge_buffers(
    broadcast: Mapping[str, Tensor],
    clients: Sequence[Mapping[str, Tensor]],
    weights: Sequence[float],
    policy: BufferPolicy = "mean",
) -> dict[str, Tensor]:
    """Merge buffers: ``mean`` averages the clients' floats, ``keep`` keeps the server's.

    Integer buffers (such as BatchNorm's counter) are kept under either policy: a mean of counters
    means nothing.
    """
    if policy not in ("mean", "keep"):
        raise InputError(f"policy: expected 'mean' or 'keep', found {policy!r}")
    share = numbers("weights", weights)
    share = share / share.sum()
    merged = dict(broadcast)
    for name, value in broadcast.items():
        if policy == "mean" and value.is_floating_point() and clients:
            rows = torch.stack([client[name].to(torch.float64) for client in clients])
            merged[name] = torch.tensordot(share, rows, dims=1).to(value.dtype)
    return merged
