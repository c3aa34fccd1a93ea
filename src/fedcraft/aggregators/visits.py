"""In which order a round's clients meet: from their ids, never from the order of the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedcraft.seeds import generator
from fedcraft.updates import ClientId, client_order


def by_id(client_ids: Sequence[ClientId]) -> list[int]:
    """Return the positions of the clients in the order of their ids; integers come first."""
    return sorted(range(len(client_ids)), key=lambda row: client_order(client_ids[row]))


def visits(client_ids: Sequence[ClientId], seed: int, purpose: str, number: int) -> Tensor:
    """Return (m, m): row i is a random order of all clients, drawn for client i and this round."""
    ranked = np.array(by_id(client_ids))
    count = len(ranked)
    draws = generator(seed, purpose, number).permuted(np.tile(np.arange(count), (count, 1)), axis=1)
    orders = np.empty_like(draws)
    orders[ranked] = ranked[draws]
    return torch.from_numpy(orders)
