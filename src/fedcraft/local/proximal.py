"""FedProx: local training that is pulled back to the broadcast model."""

from __future__ import annotations

from typing import Any

from fedcraft.errors import require
from fedcraft.local.descent import ProximalTerm, descend
from fedcraft.local.objective import LocalResult, LocalTask
from fedcraft.local.sgd import PlainSGD
from fedcraft.models import FlatModel


class Proximal(PlainSGD):
    """theta <- theta - lr (grad f_i(theta; batch) + mu (theta - theta_t)): FedProx's client.

    The first step equals plain SGD's. ``lr * mu >= 2`` diverges. Reports FedNova's
    A_i = (1 - (1 - lr mu)^K) / (lr mu). Cost: one more pass over the parameters per batch. The
    stragglers that FedProx's authors simulate belong to the engine, not to the client.
    """

    def __init__(self, *, mu: float = 0.01, **options: Any) -> None:
        super().__init__(**options)
        require(mu >= 0, "mu", "a number >= 0", mu)
        self.mu = mu

    def _run(self, model: FlatModel, task: LocalTask) -> LocalResult:
        term = ProximalTerm(task.theta, self.mu)
        done = descend(model, task.batches(), self.loss, task.lr, solver=self.solver, proximal=term)
        return LocalResult(len(task.data), done.steps, done.train_loss)
