"""FedDyn: a local objective whose minimum moves to that of all clients."""

from __future__ import annotations

from typing import Any

import torch

from fedcraft.errors import require
from fedcraft.local.descent import ProximalTerm, descend
from fedcraft.local.objective import LocalObjective, LocalResult, LocalTask
from fedcraft.models import FlatModel

_GRADIENT = "gradient"


class FedDyn(LocalObjective):
    """theta <- theta - lr (grad f_i(theta; batch) - h_i + alpha (theta - theta_t)), then

    h_i <- h_i - alpha (theta_i - theta_t) (Acar et al. 2021, arXiv:2111.04263, algorithm 1). h_i is
    kept by the client and zero at first. Works with the rule ``feddyn``. Reports A_i as FedProx
    does. Cost: two more passes over the parameters per batch; keeps one vector.

    * ``alpha``: 0.01, as in the released code's examples. That code divides it by n_i / mean n,
      clips gradients, and reports the accuracy of the mean of the clients' models.
    """

    def __init__(self, *, alpha: float = 0.01, **options: Any) -> None:
        super().__init__(**options)
        require(alpha > 0, "alpha", "a positive number", alpha)
        self.alpha = alpha

    def _run(self, model: FlatModel, task: LocalTask) -> LocalResult:
        linear = task.kept(_GRADIENT, torch.zeros_like(task.theta))
        pull = ProximalTerm(task.theta, self.alpha)
        done = descend(model, task.batches(), self.loss, task.lr, proximal=pull, shift=-linear)
        linear = linear - self.alpha * (model.vector - task.theta)
        return LocalResult(len(task.data), done.steps, done.train_loss, state={_GRADIENT: linear})
