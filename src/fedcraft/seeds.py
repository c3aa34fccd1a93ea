"""One random stream per (run seed, purpose, round, client): no draw depends on earlier draws.

Streams are never shared, so the same run gives the same bits whatever the number of
workers, and a resumed run draws what the uninterrupted one would have drawn.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch


def _sequence(seed: int, purpose: str, address: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *address])


def generator(seed: int, purpose: str, *address: int) -> np.random.Generator:
    """Return numpy's generator of the stream ``(seed, purpose, *address)``.

    >>> draws = [float(generator(77, "cohort", 3).random()) for _ in range(2)]
    >>> draws[0] == draws[1]
    True
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, address)))


def torch_generator(seed: int, purpose: str, *address: int) -> torch.Generator:
    """Return torch's CPU generator of the same stream."""
    state = int(_sequence(seed, purpose, address).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(state & (2**63 - 1))
