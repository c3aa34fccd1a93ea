"""PropFair: clients that follow the logarithm of their utility."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedcraft.errors import require
from fedcraft.local.descent import descend
from fedcraft.local.objective import LocalResult, LocalTask
from fedcraft.local.sgd import PlainSGD
from fedcraft.models import FlatModel


class PropFair(PlainSGD):
    """theta <- theta - lr grad of -log_eps(M - f_i(theta; batch)): proportional fairness

    (Zhang et al. 2022, arXiv:2202.01666). M - f_i is the client's utility; the sum of logarithms
    weighs a batch's gradient by 1 / (M - f_i), so that a relative loss of utility counts the same
    for everyone. Below eps, where the logarithm would explode, log_eps goes on as its tangent:
    log_eps(x) = log x for x >= eps, log eps + (x - eps) / eps otherwise. Cost: as plain SGD.

    * ``baseline``: M, about the largest loss that a client should have (2 in the released code,
      too small where training starts with a larger loss).
    * ``eps``: 0.2, as in the released code.

    The tangent is that code's option ``huber``, by default off; without it, batches below eps get
    the weight 1 / M.
    The reported training loss is that of this objective; losses for rules are plain ones.
    """

    def __init__(self, *, baseline: float = 5.0, eps: float = 0.2, **options: Any) -> None:
        super().__init__(**options)
        require(eps > 0, "eps", "a positive number", eps)
        require(baseline > eps, "baseline", f"a number above eps = {eps}", baseline)
        self.baseline, self.eps = baseline, eps

    def _run(self, model: FlatModel, task: LocalTask) -> LocalResult:
        done = descend(model, task.batches(), self._unfair, task.lr, solver=self.solver)
        return LocalResult(len(task.data), done.steps, done.train_loss)

    def _unfair(self, outputs: Tensor, labels: Tensor) -> Tensor:
        utility = self.baseline - self.loss(outputs, labels)
        inside = utility.clamp(min=self.eps)
        return -(torch.log(inside) + (utility - inside) / self.eps)
