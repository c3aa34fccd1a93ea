"""Per-FedAvg: train a model that is good after one step on a client's data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from fedcraft.errors import require
from fedcraft.local.descent import Batch, gradients, mean_loss
from fedcraft.local.objective import LocalObjective, LocalResult, LocalTask
from fedcraft.models import FlatModel

_READS = {"first_order": 2, "hf": 3}


class PerFedAvg(LocalObjective):
    """w' = w - alpha grad f(w; b1), then w <- w - beta grad f(w'; b2).

    ``variant="first_order"`` leaves the Hessian out; ``"hf"`` takes, with d = grad f(w'; b2),
    w <- w - beta (d - alpha [grad f(w + delta d; b3) - grad f(w - delta d; b3)] / (2 delta)).
    ``beta`` is the task's rate if left out.

    A round has as many steps as FedAvg's, epochs * ceil(n_i / B), each with fresh batches from
    further shuffled epochs; so it costs two (four) times FedAvg's. A client is evaluated after one
    alpha-step on the mean gradient of its whole training part.
    """

    personal = True

    def __init__(
        self,
        *,
        variant: Literal["first_order", "hf"] = "first_order",
        alpha: float = 0.01,
        beta: float | None = None,
        delta: float = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require(variant in _READS, "variant", f"one of {list(_READS)}", variant)
        require(alpha >= 0, "alpha", "a number >= 0", alpha)
        require(beta is None or beta >= 0, "beta", "a number >= 0 or None", beta)
        require(delta > 0, "delta", "a positive number", delta)
        self.variant, self.alpha, self.beta, self.delta = variant, alpha, beta, delta

    def _run(self, model: FlatModel, task: LocalTask) -> LocalResult:
        stream = task.batches(task.epochs * _READS[self.variant])
        beta = task.lr if self.beta is None else self.beta
        count = task.epochs * task.batches_per_epoch
        losses = [self._step(model, stream, beta) for _ in range(count)]
        return LocalResult(len(task.data), float(count), mean_loss(losses))

    def _step(self, model: FlatModel, stream: Iterator[Batch], beta: float) -> Tensor:
        stand = model.vector.clone()
        _, inner = self._slopes(model, next(stream))
        model.vector.sub_(inner, alpha=self.alpha)
        value, direction = self._slopes(model, next(stream))
        if self.variant == "hf":
            curvature = self._curvature(model, stand, direction, next(stream))
            direction = direction.sub(curvature, alpha=self.alpha)
        torch.sub(stand, direction, alpha=beta, out=model.vector)
        return value

    def _curvature(
        self, model: FlatModel, stand: Tensor, direction: Tensor, batch: Batch
    ) -> Tensor:
        """Return the Hessian at ``stand`` times ``direction``, by central differences.

        Both sides draw the same dropout masks: the difference of two masks, divided by delta,
        would hide the curvature.
        """
        sides, masks = [], torch.get_rng_state()
        for delta in (self.delta, -self.delta):
            torch.set_rng_state(masks)
            torch.add(stand, direction, alpha=delta, out=model.vector)
            sides.append(self._slopes(model, batch)[1])
        return (sides[0] - sides[1]) / (2 * self.delta)

    def _slopes(self, model: FlatModel, batch: Batch) -> tuple[Tensor, Tensor]:
        value, grads = gradients(model, self.loss, batch, model.parameters)
        return value, torch.cat([grad.reshape(-1) for grad in grads])

    def personal_vector(self, model: FlatModel, task: LocalTask) -> Tensor:
        """Return theta - alpha grad f_i(theta), the gradient without dropout or augmentation."""
        model.load(task.theta)
        model.module.eval()
        mean = torch.zeros_like(task.theta)
        for inputs, labels in task.data.parts():
            part = self._slopes(model, (inputs, labels))[1]
            mean.add_(part, alpha=len(labels) / len(task.data))
        return task.theta.sub(mean, alpha=self.alpha)
