"""Plain local SGD, and how the client rate decays over the rounds."""

from __future__ import annotations

from typing import Any, Literal

from fedcraft.errors import require
from fedcraft.local.base import LocalObjective, LocalResult, LocalTask
from fedcraft.local.descent import Solver, descend
from fedcraft.models import FlatModel

__all__ = ["PlainSGD", "decayed_rate"]


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


def decayed_rate(
    lr: float, decay: float, round: int, *, exponent: Literal["t-1", "t"] = "t-1"
) -> float:
    """Return the client rate of round t = 0, 1, ...: lr * decay^max(t - 1, 0).

    The released CRAFT loop holds the rate in rounds 0 and 1; other code bases use the exponent t.

    >>> [decayed_rate(1.0, 0.5, t) for t in range(4)]
    [1.0, 1.0, 0.5, 0.25]
    """
    require(round >= 0, "round", "t >= 0", round)
    require(0 < decay <= 1, "decay", "a factor in (0, 1]", decay)
    require(exponent in ("t-1", "t"), "exponent", "'t-1' or 't'", exponent)
    power = round if exponent == "t" else max(round - 1, 0)
    return float(lr * decay**power)
