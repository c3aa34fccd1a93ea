"""GradVac: every update is turned towards the others until their usual similarity is reached."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.client_memory import grown, known_clients
from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.visits import visits
from fedcraft.aggregators.weighting import Weighted
from fedcraft.errors import require

_LEAST_SINE = 1e-4  # of the target: a target of one could not be reached


class GradVac(Weighted):
    """g = sum_i rho_i p_i; p_i starts as g_i, and for all j in random order, with

    phi = cos(p_i, g_j) below the target t = t_ij,

        p_i <- p_i + ||p_i|| (t sqrt(1 - phi^2) - phi sqrt(1 - t^2)) / (||g_j|| sqrt(1 - t^2)) g_j

    so that cos(p_i, g_j) = t; then t_ij <- (1 - beta) t_ij + beta phi (Wang et al. 2021,
    arXiv:2010.05874). Targets start at 0, which is PCGrad. Cost O(m^2 d + m^3).

    * ``beta``: how fast targets follow (0.5 by default in LibMTL and TorchJD). Pairs of clients
      meet rarely when few of many are sampled.
    * ``seed``: as for ``pcgrad``, with the stream "gradvac".

    Remembers t for every layer and every pair of clients seen, Q n^2 numbers, and the round. The
    paper sums the p_i; here they are averaged with the data sizes. TorchJD forgets t when the
    number of clients changes and adds 1e-8 to denominators; here t belongs to client ids, zero
    updates are left alone, and sqrt(1 - t^2) counts as at least 1e-4.
    """

    def __init__(self, *, beta: float = 0.01, seed: int = 0, **options: Any) -> None:
        super().__init__(**options)
        require(0 <= beta <= 1, "beta", "a number in [0, 1]", beta)
        require(seed >= 0 and seed == int(seed), "seed", "a whole number >= 0", seed)
        self.beta = beta
        self.seed = int(seed)

    def weights(self, grams: Tensor, cohort: Cohort) -> Tensor:
        number = self.memory.get("round", 0) + 1
        orders = visits(cohort.client_ids, self.seed, "gradvac", number)
        known, places = known_clients(self.memory, cohort.client_ids)
        targets = grown(self.memory.get("targets"), len(grams), len(known), len(known))
        pairs = (slice(None), places.unsqueeze(-1), places)
        pieces, targets[pairs] = _turned(grams, orders, targets[pairs], self.beta)
        self.memory = {"round": number, "clients": known, "targets": targets}
        return cohort.weights @ pieces


def _turned(grams: Tensor, orders: Tensor, targets: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return the coefficients of all p_i on the updates and the new targets, (Q, m, m) each."""
    rows = torch.arange(len(orders))
    norms = grams.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    pieces = torch.eye(len(orders), dtype=grams.dtype).repeat(len(grams), 1, 1)
    dots = grams.clone()  # <p_i, g_j>
    for others in orders.T:
        own = (pieces * dots).sum(-1).clamp(min=0).sqrt()
        size = own * norms[:, others]
        met = (size > 0) & (others != rows)
        cosine = (dots[:, rows, others] / size).clamp(-1, 1)
        target = targets[:, rows, others]
        sine = (1 - target.square()).clamp(min=_LEAST_SINE**2).sqrt()
        turn = target * (1 - cosine.square()).sqrt() / sine - cosine
        turn = torch.where(met & (cosine < target), own * turn / norms[:, others], 0)
        pieces[:, rows, others] += turn
        dots += turn.unsqueeze(-1) * grams[:, others]
        targets[:, rows, others] = torch.where(met, target + beta * (cosine - target), target)
    return pieces, targets
