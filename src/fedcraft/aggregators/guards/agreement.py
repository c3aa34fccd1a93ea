"""How far each client agrees with the others."""

from __future__ import annotations

import torch
from torch import Tensor


def others_cosines(cosines: Tensor, votes: Tensor) -> Tensor:
    """cos(u_i, sum_{j != i} v_j u_j) of every client, (m,); 0 where the others have no direction.

    ``cosines`` are products of rows of any length, with the client's own on the diagonal.
    """
    own, along = cosines.diagonal(), cosines @ votes
    others = along - votes * own
    # The square of the sum over all, without the terms of client i.
    square = votes @ along - 2 * votes * along + votes.square() * own
    tiny = 1e-12 * float(own.max().clamp(min=torch.finfo(own.dtype).tiny))
    usable = (square > tiny) & (own > tiny)
    return torch.where(usable, others / (square * own).clamp(min=tiny**2).sqrt(), 0)
