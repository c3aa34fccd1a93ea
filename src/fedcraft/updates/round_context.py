"""What a rule or an optimiser may know about the round it is in, beyond the updates."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class RoundContext:
    """Round t = ``index`` of T = ``rounds``: the model that clients received, and the rates."""

    theta: Tensor
    index: int
    rounds: int
    client_lr: float
    server_lr: float
    measures_clients: bool = False  # even for a rule that needs no Gram matrices
