"""What a rule or an optimiser may know about the round it is in, beyond the updates."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedcraft.updates.layout import Layout


@dataclass(frozen=True, eq=False)
class RoundContext:
    """Round t = ``index`` of T = ``rounds``: the model that clients received, and the rates.

    ``layout`` has the shapes of the model's tensors, and ``clients`` is the number of all clients,
    where they are known.
    """

    theta: Tensor
    index: int
    rounds: int
    client_lr: float
    server_lr: float
    layout: Layout | None = None
    clients: int | None = None
    measures_clients: bool = False  # even for a rule that needs no Gram matrices
