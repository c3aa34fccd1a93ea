"""What a rule remembers of every client that it has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedcraft.updates import ClientId


def known_clients(
    memory: Mapping[str, Any], client_ids: Sequence[ClientId]
) -> tuple[list[ClientId], Tensor]:
    """Return all clients seen so far, those of this round included, and this round's positions."""
    known: list[ClientId] = list(memory.get("clients", []))
    seen = set(known)
    known += [client for client in client_ids if client not in seen]
    places = {client: place for place, client in enumerate(known)}
    return known, torch.tensor([places[client] for client in client_ids])


def grown(values: Tensor | None, *shape: int) -> Tensor:
    """Return a copy of what is remembered, with zeros for what is new; ``values`` may be None."""
    result = torch.zeros(shape, dtype=torch.float64)
    if values is not None:
        result[tuple(slice(size) for size in values.shape)] = values
    return result
