"""SCAFFOLD: local training whose drift is corrected by control variates."""

from __future__ import annotations

import torch

from fedcraft.local.descent import descend
from fedcraft.local.objective import LocalObjective, LocalResult, LocalTask
from fedcraft.models import FlatModel

_CONTROL = "control"


class Scaffold(LocalObjective):
    """theta <- theta - lr (grad f_i(theta; batch) - c_i + c), then c_i <- c_i - c + g_i / (K lr)

    (Karimireddy et al. 2020, arXiv:1910.06378, option II). c_i is kept by the client and zero at
    first; c comes with the model from the rule ``scaffold``, which computes the change of c_i from
    the update g_i itself. Momentum is not offered: g_i / (K lr) would not be a mean gradient.
    Cost: one more pass over the parameters per batch; keeps one vector.
    """

    receives = frozenset({_CONTROL})

    def _run(self, model: FlatModel, task: LocalTask) -> LocalResult:
        zero = torch.zeros_like(task.theta)
        ours, theirs = task.kept(_CONTROL, zero), task.sent.get(_CONTROL, zero)
        done = descend(model, task.batches(), self.loss, task.lr, shift=theirs - ours)
        path = done.steps * task.lr
        if path > 0:
            ours = ours - theirs + (task.theta - model.vector) / path
        return LocalResult(len(task.data), done.steps, done.train_loss, state={_CONTROL: ours})
