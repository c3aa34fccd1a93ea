"""Ditto: a personal model beside the global one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from fedcraft.errors import require
from fedcraft.local import local_objective
from fedcraft.local.descent import ProximalTerm, descend
from fedcraft.local.objective import LocalObjective, LocalResult, LocalTask, prefixed, unprefixed
from fedcraft.models import FlatModel

_PERSONAL = "personal"
_INNER = "inner."


class Ditto(LocalObjective):
    """v_i <- v_i - lr (grad f_i(v_i; batch) + lam (v_i - theta_t)), beside any way to train theta.

    v_i starts at theta_0, is kept by the client and moves only when the client takes part; the
    client is evaluated with it. The upload is that of ``inner`` (a name, a mapping with "name" and
    parameters, or an objective), bit for bit. As in the authors' code both models see
    the same batches and the anchor is the *broadcast* model, so the two descents do not depend on
    each other and run one after the other instead of interleaved. Cost: twice the inner's.

    ``personal_lr`` is the rate of v_i; the task's rate if left out.
    """

    personal = True

    def __init__(
        self,
        *,
        lam: float = 1.0,
        personal_lr: float | None = None,
        inner: str | Mapping[str, Any] | LocalObjective = "plain",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require(lam >= 0, "lam", "a number >= 0", lam)
        fine = personal_lr is None or personal_lr >= 0
        require(fine, "personal_lr", "a number >= 0 or None", personal_lr)
        self.lam = lam
        self.personal_lr = personal_lr
        self.inner = _objective(inner, options)

    def check(self, module: nn.Module) -> None:
        """Raise ``InputError`` if the inner objective cannot train ``module``."""
        self.inner.check(module)

    def _run(self, model: FlatModel, task: LocalTask) -> LocalResult:
        state = unprefixed(_INNER, task.state or {}) or None
        result = self.inner._run(model, replace(task, state=state))
        trained, buffers = model.vector.clone(), model.buffers()
        model.load(self.personal_vector(model, task))
        lr = task.lr if self.personal_lr is None else self.personal_lr
        descend(model, task.batches(), self.loss, lr, proximal=ProximalTerm(task.theta, self.lam))
        personal = model.vector.clone()
        model.load(trained)
        model.load_buffers(buffers)
        kept = {_PERSONAL: personal, **prefixed(_INNER, result.state or {})}
        return replace(result, state=kept)

    def personal_vector(self, model: FlatModel, task: LocalTask) -> Tensor:
        """Return v_i; theta_0 if the client has not taken part yet."""
        return task.kept(_PERSONAL, task.start())


def _objective(
    inner: str | Mapping[str, Any] | LocalObjective, options: Mapping[str, Any]
) -> LocalObjective:
    if isinstance(inner, LocalObjective):
        return inner
    params = {"name": inner} if isinstance(inner, str) else dict(inner)
    return local_objective(**{**options, **params})
