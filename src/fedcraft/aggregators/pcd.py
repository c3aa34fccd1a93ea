"""PCD: the average, bent only as far as every client's guaranteed progress requires."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.client_memory import grown, known_clients
from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.weighting import Weighted
from fedcraft.errors import require
from fedcraft.linalg import ratio, unit_grams
from fedcraft.linalg.at_least import at_least_dual

_MET = 1e-6


class PCD(Weighted):
    """Priority-constrained descent (Varam and AlHajri 2026, arXiv:2606.29521) with the average as

    the primary objective and every client as a secondary one: with a = sum_i rho_i g_i,

        d = argmin ||y - s_0 a||  subject to  <s_i g_i, y> >= tau ||s_i g_i||^2 for all i,
        g = ||a|| d / ||d||,   s_i = 1 / sqrt(v_i + eps),

    v_i the moving average of ||g_i||^2 over the rounds (of ||a||^2 for s_0), with bias correction.
    Where the average serves every client well enough, this is FedAvg. Cost O(m^2 d + m^3).

    * ``tau``: the share of its own progress that every client gets.
    * ``beta``: the decay of v. * ``eps``: an absolute constant. All defaults are TorchJD's.

    Remembers v for every layer and every client seen, and how often each was seen: v belongs to
    client ids, and an absent client's is not changed. Constraints that cannot all be met are
    dropped, and g = a, as in the paper; a = 0 gives zero.
    """

    def __init__(
        self, *, tau: float = 0.02, beta: float = 0.999, eps: float = 1e-8, **options: Any
    ) -> None:
        super().__init__(**options)
        require(0 <= tau <= 1, "tau", "a number in [0, 1]", tau)
        require(0 <= beta < 1, "beta", "a number in [0, 1)", beta)
        require(eps >= 0, "eps", "a number >= 0", eps)
        self.tau, self.beta, self.eps = tau, beta, eps

    def weights(self, grams: Tensor, cohort: Cohort) -> Tensor:
        average = torch.einsum("i,qij,j->q", cohort.weights, grams, cohort.weights).clamp(min=0)
        scales = self._scales(average, grams.diagonal(dim1=1, dim2=2).clamp(min=0), cohort)
        rows = zip(grams, average, scales, strict=True)
        return torch.stack([self._bent(gram, a, s, cohort.weights) for gram, a, s in rows])

    def _scales(self, average: Tensor, squares: Tensor, cohort: Cohort) -> Tensor:
        """s_0 and the s_i by layer, (Q, 1 + m), with this round in the moving averages."""
        known, places = known_clients(self.memory, cohort.client_ids)
        places = torch.cat([torch.zeros(1, dtype=torch.long), places + 1])  # 0: the average
        moving = grown(self.memory.get("moving"), len(squares), 1 + len(known))
        counts = grown(self.memory.get("counts"), 1 + len(known))
        new = torch.cat([average.unsqueeze(-1), squares], dim=-1)
        moving[:, places] = self.beta * moving[:, places] + (1 - self.beta) * new
        counts[places] += 1
        self.memory = {"clients": known, "moving": moving, "counts": counts}
        corrected = moving[:, places] / (1 - self.beta ** counts[places]) + self.eps
        return ratio(1, corrected.sqrt())

    def _bent(self, gram: Tensor, average: Tensor, scales: Tensor, shares: Tensor) -> Tensor:
        kernel, inverse = unit_grams(gram)
        norms = gram.diagonal().clamp(min=0).sqrt()
        primary = scales[0] * shares
        gap = self.tau * scales[1:] * norms - inverse * (gram @ primary)
        if not bool((gap > 0).any()):
            return shares
        size = gap.abs().max()
        multipliers = at_least_dual(kernel, gap / size) * size
        if bool((kernel @ multipliers < gap - _MET * size).any()):
            return shares
        bent = primary + inverse * multipliers
        square = (bent @ gram @ bent).clamp(min=0)
        return bent * (average / square).sqrt() if square > 0 else torch.zeros_like(bent)
