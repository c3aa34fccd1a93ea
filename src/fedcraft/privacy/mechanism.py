"""Clipping and Gaussian noise."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedcraft.privacy.options import Privacy
from fedcraft.seeds import torch_generator

_BITS = 52  # with one more, the largest number below one would be rounded to one
_PIECE = 1 << 20  # numbers drawn at a time


def clipped(updates: Tensor, most: float) -> Tensor:
    """Shorten every row of (m, d), or a single vector, that is longer than ``most``."""
    norms = torch.linalg.vector_norm(updates, dim=-1, keepdim=True, dtype=torch.float64)
    factors = (most / norms.clamp(min=torch.finfo(torch.float64).tiny)).clamp(max=1)
    shortened: Tensor = updates * factors.to(updates.dtype)
    return shortened


def client_noise(privacy: Privacy, least_clients: int) -> float:
    """The standard deviation of the noise that one client adds."""
    if privacy.mode == "central":
        return 0.0
    whole = 2 * privacy.clip * privacy.noise
    return whole if privacy.mode == "local" else whole / math.sqrt(least_clients)


def privatised(update: Tensor, privacy: Privacy, least_clients: int) -> Tensor:
    """Return one client's update as it may leave the client, with unpredictable noise."""
    return _noisy(clipped(update, privacy.clip), client_noise(privacy, least_clients), None)


def simulated_noise(
    updates: Tensor,
    privacy: Privacy,
    least_clients: int,
    *,
    seed: int,
    index: int,
    clients: Sequence[int],
) -> Tensor:
    """Return all clients' updates as they leave; the noise follows from the run's seed.

    For studies: whoever knows the seed can take this noise out again.
    """
    scale = client_noise(privacy, least_clients)
    rows = clipped(updates, privacy.clip)
    for row, client in enumerate(clients):
        random = torch_generator(seed, "client noise", index, int(client))
        rows[row] = _noisy(rows[row], scale, random)
    return rows


def server_noise(
    direction: Tensor, privacy: Privacy, clients: int, random: torch.Generator | None
) -> Tensor:
    """Return the mean of ``clients`` clipped updates with the noise of the central mode.

    Without ``random`` nobody can predict the noise.
    """
    return _noisy(direction, 2 * privacy.clip * privacy.noise / clients, random)


def _noisy(vector: Tensor, scale: float, random: torch.Generator | None) -> Tensor:
    if not scale:
        return vector
    if random is None:
        noise = unpredictable(vector.numel(), vector.dtype).view(vector.shape)
    else:
        noise = torch.randn(vector.shape, generator=random, dtype=torch.float32)
    return vector + scale * noise.to(vector)


def unpredictable(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers from the system's source of randomness.

    torch's generator uses 32 bits of its seed, which are few enough to try them all. Noise with
    fewer digits than an update (``dtype``) would leave the last digits of the update as they are.
    """
    from scipy.special import ndtri  # others start faster without it

    found = torch.empty(count, dtype=dtype)
    for piece in torch.split(found, _PIECE):
        words = np.frombuffer(os.urandom(8 * len(piece)), np.uint64) >> np.uint64(64 - _BITS)
        piece.copy_(torch.from_numpy(ndtri((words + 0.5) / 2.0**_BITS)))
    return found
