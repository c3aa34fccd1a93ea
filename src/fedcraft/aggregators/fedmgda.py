"""FedMGDA+: the shortest mixture of unit updates near the data weights."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.cohort import Cohort
from fedcraft.errors import require
from fedcraft.linalg import scaled_grams, shares
from fedcraft.linalg.minnorm import min_norm_weights

Scale = Literal["unit", "client_lr", "mean_norm"]


class FedMGDA(Aggregator):
    """g_t = sum_i l_i u_i with u_i = g_i / ||g_i|| (Hu et al. 2022, FedMGDA+), where l minimises

    ||sum_i l_i u_i||^2 over the simplex and |l_i - rho_i| <= epsilon. epsilon = 0 is the weighted
    mean of unit updates, epsilon >= 1 plain MGDA on them; only there is <g_t, u_i> >= ||g_t||^2
    promised. Zero updates are dropped and rho renormalised over the others; all zero gives zero.
    Works on the whole model, not by layer. Remembers nothing; cost O(m^2 d + m^3).

    * ``scale``: ``"unit"`` is the formula above, whose length (at most 1) does not depend on eta_l;
      ``"client_lr"`` multiplies by the client rate as one released program does; ``"mean_norm"`` by
      the clients' mean ||g_i||, so that the step shrinks with them.
    * ``norm_offset`` is added to ||g_i||: 0, or 1e-8 as in FLGo.
    """

    def __init__(
        self,
        *,
        epsilon: float = 0.1,
        scale: Scale = "unit",
        norm_offset: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require(epsilon >= 0, "epsilon", "a number >= 0", epsilon)
        kinds = ("unit", "client_lr", "mean_norm")
        require(scale in kinds, "scale", f"one of {kinds}", scale)
        require(norm_offset >= 0, "norm_offset", "a number >= 0", norm_offset)
        self.epsilon = epsilon
        self.scale: Scale = scale
        self.norm_offset = norm_offset
        if scale == "client_lr":
            self.needs = frozenset({"client_lr"})

    def direction(self, cohort: Cohort) -> Outcome:
        norms = cohort.gram.diagonal().clamp(min=0).sqrt()
        rows = torch.nonzero(norms > 0).flatten()
        coefficients = torch.zeros_like(norms)
        if len(rows):
            inverse = 1 / (norms[rows] + self.norm_offset)
            kernel = scaled_grams(cohort.gram[rows][:, rows], inverse)
            rho = shares(cohort.weights[rows])
            lower = (rho - self.epsilon).clamp(min=0)
            upper = (rho + self.epsilon).clamp(max=1)
            mixture = min_norm_weights(kernel, lower, upper)
            coefficients[rows] = mixture * inverse * self._length(cohort, norms[rows])
        return Outcome(cohort.combine(coefficients))

    def _length(self, cohort: Cohort, norms: torch.Tensor) -> float:
        if self.scale == "unit":
            return 1.0
        return cast(float, cohort.client_lr) if self.scale == "client_lr" else float(norms.mean())
