"""q-FedAvg: weigh clients by a power of their loss."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.cohort import Cohort
from fedcraft.errors import require


class QFedAvg(Aggregator):
    """g_t = sum_i Delta_i / sum_i h_i (Li et al. 2020, algorithm 2) with L = 1 / eta_l::

        Delta_i = F_i^q L g_i,      h_i = q F_i^(q-1) ||L g_i||^2 + L F_i^q

    F_i is the loss at theta_t. The rule sets its own step size, which shrinks as ||g_i||^2 / eta_l
    grows. q = 0 is the uniform mean; data sizes play no role (the paper samples by them instead).
    Numerator and denominator are divided by (max F)^q / eta_l, so that a large q cannot overflow.
    Remembers nothing; cost O(m d).

    * ``q``: 0.1; the paper tunes it by data set and has no default.
    * ``loss_offset`` is added to every F_i: 1e-10 in the authors' code, 1e-8 in FLGo.
    * ``loss_floor`` raises smaller losses: with q < 1, a loss near zero makes F^(q-1) explode and
      the whole step vanish. The references have 0 (off); 1e-3 prevents the problem.
    """

    needs = frozenset({"losses", "client_lr"})

    def __init__(
        self, *, q: float = 0.1, loss_offset: float = 1e-10, loss_floor: float = 0.0, **options: Any
    ) -> None:
        super().__init__(**options)
        require(q >= 0, "q", "a number >= 0", q)
        require(loss_offset >= 0, "loss_offset", "a number >= 0", loss_offset)
        require(loss_floor >= 0, "loss_floor", "a number >= 0", loss_floor)
        self.q = q
        self.loss_offset = loss_offset
        self.loss_floor = loss_floor

    def direction(self, cohort: Cohort) -> Outcome:
        losses = self._losses(cohort)
        largest = losses.max()
        powers = (losses / largest) ** self.q
        slopes = self.q * powers / losses
        lengths = cohort.square_norms.sum(0) / cast(float, cohort.client_lr)
        return Outcome(cohort.combine(powers / (powers + slopes * lengths).sum()))

    def _losses(self, cohort: Cohort) -> Tensor:
        given = cast(Tensor, cohort.losses)
        require(bool((given >= 0).all()), "losses", "numbers >= 0", given.tolist())
        losses = (given + self.loss_offset).clamp(min=self.loss_floor)
        if self.q == 0:
            return torch.ones_like(losses)
        require(bool((losses > 0).all()), "losses", "positive losses with loss_offset=0", 0.0)
        return losses
