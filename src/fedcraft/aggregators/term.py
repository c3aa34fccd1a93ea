"""TERM: weights tilted towards the clients with large losses."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.cohort import Cohort
from fedcraft.errors import require


class TERM(Aggregator):
    """g_t = sum_i w_i g_i with w_i proportional to rho_i exp(t F_i)

    (Li et al. 2021, arXiv:2007.01162): the gradient of the tilted loss
    (1/t) log sum_i rho_i exp(t F_i), with clients in the place of samples. Remembers nothing;
    cost O(m d).

    * ``tilt``: t. 0 is FedAvg; large values tend to the worst client (AFL, minimax), negative ones
      leave out clients with large losses.

    F_i is the loss at theta_t. The largest exponent is subtracted, so that no tilt overflows. The
    released code (with the same default t) weighs clients by exp(t F_i) alone, divides by m times a
    moving average over rounds (factor 1/2) of the mean weight, and then takes the mean over the m
    clients, so that its steps are about m times shorter. Here data sizes count, and the weights of
    a round sum to one, as in the released code of PropFair (with t = 0.01).
    """

    needs = frozenset({"losses"})

    def __init__(self, *, tilt: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        require(abs(tilt) < float("inf"), "tilt", "a finite number", tilt)
        self.tilt = tilt

    def direction(self, cohort: Cohort) -> Outcome:
        losses = cast(Tensor, cohort.losses)
        return Outcome(cohort.combine(torch.softmax(cohort.weights.log() + self.tilt * losses, 0)))
