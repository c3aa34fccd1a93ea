"""FedNova: average the clients' directions per local step, so that unequal work does not count."""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import torch
from torch import Tensor

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.cohort import Cohort
from fedcraft.errors import require
from fedcraft.linalg import ratio


class FedNova(Aggregator):
    """g_t = tau_eff sum_i rho_i g_i / A_i with tau_eff = sum_i rho_i A_i (Wang et al. 2020).

    ``steps`` are A_i = ||a_i||_1, the total weight of the local gradients in g_i: the number of
    local steps K_i for plain SGD, more with momentum, less with a proximal term (the local
    objectives report it). Equal A_i give the plain average. A client with A_i = 0 did not train and
    is left out; if nobody trained the direction is zero. Remembers nothing; cost O(m d).

    * ``weighting``: rho from ``"data"`` sizes, renormalised over the participants, or
      ``"uniform"``. The paper has all clients in every round, so the two sources agree there.
    * ``tau_eff="steps"`` takes sum_i rho_i K_i as the released code does with its proximal solver;
      K_i is recovered from A_i = (1 - (1 - eta mu)^K_i) / (eta mu), so ``mu`` and ``client_lr`` are
      needed. The default is the paper's formula.

    The released code's server momentum is the server optimiser ``momentum``.
    """

    needs = frozenset({"steps"})

    def __init__(
        self,
        *,
        weighting: Literal["data", "uniform"] = "data",
        tau_eff: Literal["norms", "steps"] = "norms",
        mu: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require(weighting in ("data", "uniform"), "weighting", "'data' or 'uniform'", weighting)
        require(tau_eff in ("norms", "steps"), "tau_eff", "'norms' or 'steps'", tau_eff)
        require(mu >= 0, "mu", "a number >= 0", mu)
        self.weighting = weighting
        self.tau_eff = tau_eff
        self.mu = mu
        if self._recovers_steps:
            self.needs = self.needs | {"client_lr"}

    @property
    def _recovers_steps(self) -> bool:
        return self.tau_eff == "steps" and self.mu > 0

    def direction(self, cohort: Cohort) -> Outcome:
        norms = cast(Tensor, cohort.steps)
        require(bool((norms >= 0).all()), "steps", "numbers >= 0", norms.tolist())
        shares = self._shares(cohort, norms > 0)
        effective = (shares * self._counted(norms, cohort.client_lr)).sum()
        return Outcome(cohort.combine(effective * ratio(shares, norms)))

    def _shares(self, cohort: Cohort, trained: Tensor) -> Tensor:
        data = cohort.weights if self.weighting == "data" else torch.ones_like(cohort.weights)
        kept = torch.where(trained, data, 0)
        if kept.sum() == 0:
            kept = trained.to(data.dtype)
        return kept / kept.sum().clamp(min=torch.finfo(kept.dtype).tiny)

    def _counted(self, norms: Tensor, client_lr: float | None) -> Tensor:
        if not self._recovers_steps:
            return norms
        shrink = cast(float, client_lr) * self.mu
        require(shrink < 1, "client_lr", f"a rate below 1 / mu = {1 / self.mu}", client_lr)
        reached = norms * shrink
        require(bool((reached < 1).all()), "steps", "A_i below 1 / (eta mu)", norms.tolist())
        return torch.log1p(-reached) / math.log1p(-shrink)
