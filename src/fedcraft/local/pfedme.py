"""pFedMe: personal models through Moreau envelopes of the clients' losses."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedcraft.errors import require
from fedcraft.local.descent import ProximalTerm, descend
from fedcraft.local.objective import LocalObjective, LocalResult, LocalTask
from fedcraft.models import FlatModel

_PERSONAL = "personal"


class PFedMe(LocalObjective):
    """v <- about argmin_v f_i(v; batch) + (lam / 2) ||v - w||^2,   w <- w - lr lam (w - v)

    (Dinh et al. 2020, arXiv:2006.08848, algorithm 1). w starts at theta_t and is uploaded; v starts
    at w and takes ``inner_steps`` gradient steps on the batch. The last v is kept by the client,
    which is evaluated with it (with theta_0 before its first round). The paper's beta is server_lr.
    Cost: ``inner_steps`` times plain SGD's; keeps one vector.

    * ``lam``: 15; ``inner_steps``: 5, both as in the released code, which has lr = 0.005.
      ``lr * lam`` above 1 overshoots.
    * ``personal_lr``: the rate of v (0.09 there); the task's rate if left out.

    In the released code v goes on from the batch before and decays by 0.001 v, and all clients
    train in every round, also those whose w is not used.
    """

    personal = True

    def __init__(
        self,
        *,
        lam: float = 15.0,
        inner_steps: int = 5,
        personal_lr: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require(lam > 0, "lam", "a positive number", lam)
        require(inner_steps > 0, "inner_steps", "at least 1", inner_steps)
        fine = personal_lr is None or personal_lr >= 0
        require(fine, "personal_lr", "a number >= 0 or None", personal_lr)
        self.lam, self.inner_steps, self.personal_lr = lam, inner_steps, personal_lr

    def _run(self, model: FlatModel, task: LocalTask) -> LocalResult:
        rate = task.lr if self.personal_lr is None else self.personal_lr
        shared, own, losses = task.theta.clone(), self.personal_vector(model, task), []
        for batch in task.batches():
            model.load(shared)
            pull = ProximalTerm(shared, self.lam)
            batches = [batch] * self.inner_steps
            losses.append(descend(model, batches, self.loss, rate, proximal=pull).train_loss)
            own = model.vector.clone()
            shared = shared.lerp(own, task.lr * self.lam)
        model.load(shared)
        mean = sum(losses) / len(losses) if losses else float("nan")
        return LocalResult(len(task.data), len(losses), mean, state={_PERSONAL: own})

    def personal_vector(self, model: FlatModel, task: LocalTask) -> Tensor:
        """Return v_i; theta_0 if the client has not taken part yet."""
        return task.kept(_PERSONAL, task.start())
