"""APFL: every client mixes a personal model with the global one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedcraft.errors import require
from fedcraft.local.descent import gradients, mean_loss
from fedcraft.local.objective import LocalObjective, LocalResult, LocalTask
from fedcraft.models import FlatModel

_PERSONAL, _SHARE = "personal", "share"


class APFL(LocalObjective):
    """w <- w - lr grad f_i(w; batch),   v <- v - lr a grad f_i(u; batch),   u = a v + (1 - a) w

    (Deng et al. 2020, arXiv:2003.13461, algorithm 1). w starts at theta_t and is uploaded; v starts
    at theta_0, is kept by the client and moves only when the client takes part. The client is
    evaluated with a v + (1 - a) theta_t. Both steps use the models before the batch. Cost: twice
    plain SGD's; keeps one vector.

    * ``alpha``: a at first; 1 is training alone, 0 is FedAvg.
    * ``adaptive``: at the first batch of a round, a <- a - lr <grad f_i(u; batch), v - w>, clipped
      to [0, 1].

    The released code mixes the outputs of the two models instead of their parameters, moves w
    before it computes v's gradient, and in the step of a scales the gradient and adds 0.02 a.
    """

    personal = True

    def __init__(self, *, alpha: float = 0.5, adaptive: bool = False, **options: Any) -> None:
        super().__init__(**options)
        require(0 <= alpha <= 1, "alpha", "a number from 0 to 1", alpha)
        self.alpha, self.adaptive = alpha, adaptive

    def _run(self, model: FlatModel, task: LocalTask) -> LocalResult:
        own, share, losses = task.kept(_PERSONAL, task.start()).clone(), self._share(task), []
        for number, batch in enumerate(task.batches()):
            shared = model.vector.clone()
            model.load(torch.lerp(shared, own, share))
            _, parts = gradients(model, self.loss, batch, model.parameters)
            gradient = torch.cat([part.reshape(-1) for part in parts])
            model.load(shared)
            losses.append(model.step(*batch, self.loss, task.lr))
            if self.adaptive and number == 0:
                slope = float(torch.dot(gradient, own - shared))
                share = min(max(share - task.lr * slope, 0.0), 1.0)
            own.sub_(gradient, alpha=task.lr * share)
        state = {_PERSONAL: own, _SHARE: torch.tensor(share, dtype=torch.float64)}
        return LocalResult(len(task.data), len(losses), mean_loss(losses), state=state)

    def personal_vector(self, model: FlatModel, task: LocalTask) -> Tensor:
        """Return the mixture of the client's own model with the broadcast one."""
        return torch.lerp(task.theta, task.kept(_PERSONAL, task.start()), self._share(task))

    def _share(self, task: LocalTask) -> float:
        kept = task.kept(_SHARE)
        return self.alpha if kept is None else float(kept)
