"""Plain local SGD."""

from __future__ import annotations

from typing import Any

from fedcraft.local.descent import Solver, descend
from fedcraft.local.objective import LocalObjective, LocalResult, LocalTask
from fedcraft.models import FlatModel


class PlainSGD(LocalObjective):
    """theta <- theta - lr grad f_i(theta; batch), as in FedAvg.

    ``momentum`` (heavy ball, reset every round) and ``weight_decay`` are off by default. Reports
    A_i = K_i, or FedNova's sum of the momentum weights ([K - b (1 - b^K) / (1 - b)] / (1 - b)).
    """

    def __init__(self, *, momentum: float = 0.0, weight_decay: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.solver = Solver(momentum, weight_decay)

    def _run(self, model: FlatModel, task: LocalTask) -> LocalResult:
        done = descend(model, task.batches(), self.loss, task.lr, solver=self.solver)
        return LocalResult(len(task.data), done.steps, done.train_loss)
