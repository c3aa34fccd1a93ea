"""PCGrad: every update is projected off those that it conflicts with, one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.visits import visits
from fedcraft.aggregators.weighting import Weighted
from fedcraft.errors import require


class PCGrad(Weighted):
    """g = sum_i rho_i p_i; p_i starts as g_i, and for all j in random order, where <p_i, g_j> < 0,

    p_i <- p_i - <p_i, g_j> / ||g_j||^2 g_j (Yu et al. 2020, arXiv:2001.06782, algorithm 1). Two
    clients end without conflict; more may not. Remembers the number of the round; cost
    O(m^2 d + m^3).

    * ``seed``: the orders come from the stream (seed, "pcgrad", round), so that they depend neither
      on the order of the rows nor on other draws. All layers have the same orders.

    The paper sums the p_i; here they are averaged with the data sizes, as the server of a
    federation does. Nothing is projected off a zero update.
    """

    def __init__(self, *, seed: int = 0, **options: Any) -> None:
        super().__init__(**options)
        require(seed >= 0 and seed == int(seed), "seed", "a whole number >= 0", seed)
        self.seed = int(seed)

    def weights(self, grams: Tensor, cohort: Cohort) -> Tensor:
        number = self.memory.get("round", 0) + 1
        self.memory = {"round": number}
        orders = visits(cohort.client_ids, self.seed, "pcgrad", number)
        return cohort.weights @ projected(grams, orders)


def projected(grams: Tensor, orders: Tensor) -> Tensor:
    """Return the coefficients of all p_i on the updates, (Q, m, m), for orders (m, m)."""
    rows = torch.arange(len(orders))
    squares = grams.diagonal(dim1=1, dim2=2)
    pieces = torch.eye(len(orders), dtype=grams.dtype).repeat(len(grams), 1, 1)
    dots = grams.clone()  # <p_i, g_j>
    for others in orders.T:  # all p_i at once: they do not see each other
        along, square = dots[:, rows, others], squares[:, others]
        conflict = (along < 0) & (square > 0) & (others != rows)
        share = torch.where(conflict, along / square, 0)
        pieces[:, rows, others] -= share
        dots -= share.unsqueeze(-1) * grams[:, others]
    return pieces
