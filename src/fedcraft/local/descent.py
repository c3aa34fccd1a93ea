"""The inner loop that every local objective shares: stochastic gradient steps over batches.

Gradients come from ``torch.autograd.grad`` and are subtracted tensor by tensor from views of the
flat vector. Filling a flat gradient buffer instead (zero it, accumulate, subtract) reads and writes
the parameters' size twice more per batch, for the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedcraft.errors import require
from fedcraft.local.base import Loss
from fedcraft.models.flat import FlatModel, trainable

__all__ = ["Descent", "Pull", "Solver", "descend", "mean_loss", "slopes"]

Batch = tuple[Tensor, Tensor]
Parameters = Mapping[str, nn.Parameter]


class Pull(NamedTuple):
    """The proximal term (mu / 2) ||theta - anchor||^2."""

    anchor: Tensor
    mu: float


class Descent(NamedTuple):
    """FedNova's A_i = ||a_i||_1 and the mean loss over the batches (NaN without any)."""

    steps: float
    train_loss: float


@dataclass(frozen=True)
class Solver:
    """SGD: v <- momentum v + (slope + weight_decay theta), theta <- theta - lr v.

    The velocity starts at zero in every round. ``decay_biases=False`` spares parameters whose name
    ends in "bias" from the decay.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    decay_biases: bool = True

    def __post_init__(self) -> None:
        require(0 <= self.momentum < 1, "momentum", "a number in [0, 1)", self.momentum)
        require(self.weight_decay >= 0, "weight_decay", "a number >= 0", self.weight_decay)

    def decays(self, names: Iterable[str]) -> list[float]:
        """Return the weight decay of every parameter."""
        spared = () if self.decay_biases else ("bias",)
        return [0.0 if name.endswith(spared) else self.weight_decay for name in names]


def slopes(
    model: FlatModel, loss: Loss, batch: Batch, parameters: Iterable[nn.Parameter]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the batch's mean loss and its gradients; a parameter without influence has slope 0."""
    inputs, labels = batch
    value = loss(model(inputs), labels)
    grads = torch.autograd.grad(value, tuple(parameters), allow_unused=True, materialize_grads=True)
    return value.detach(), grads


def mean_loss(losses: list[Tensor]) -> float:
    """Return the mean over the batches, NaN without any."""
    return float(torch.stack(losses).mean()) if losses else float("nan")


def descend(
    model: FlatModel,
    batches: Iterable[Batch],
    loss: Loss,
    lr: float,
    *,
    solver: Solver | None = None,
    pull: Pull | None = None,
    parameters: Parameters | None = None,
) -> Descent:
    """Step once per batch from where ``model`` stands: theta <- theta - lr (v + mu (theta - a)).

    ``parameters`` restricts the descent to some of them (not together with ``pull``). The weight of
    the k-th gradient in the update follows FedNova's recursions for momentum and proximal solvers,
    in one: c <- momentum c + 1, A <- (1 - lr mu) A + c.
    """
    solver = Solver() if solver is None else solver
    attraction = lr * pull.mu if pull is not None else 0.0
    take: Callable[[Batch], Tensor]
    if solver == Solver() and parameters is None and attraction < 1:
        take = _PlainStep(model, loss, lr, pull)
    else:
        take = _Step(model, loss, lr, pull, solver, parameters)
    losses: list[Tensor] = []
    counter = weight = 0.0
    for batch in batches:
        losses.append(take(batch))
        counter = solver.momentum * counter + 1.0
        weight = (1.0 - attraction) * weight + counter
    return Descent(weight, mean_loss(losses))


class _PlainStep:
    """SGD alone, which the model takes by itself, then the pull: with a = lr mu,

    (1 - a) (theta - lr / (1 - a) g) + a anchor.
    """

    def __init__(self, model: FlatModel, loss: Loss, lr: float, pull: Pull | None) -> None:
        self.model, self.loss, self.pull = model, loss, pull
        self.attraction = lr * pull.mu if pull is not None else 0.0
        self.lr = lr / (1 - self.attraction)

    def __call__(self, batch: Batch) -> Tensor:
        value = self.model.step(*batch, self.loss, self.lr)
        if self.pull is not None:
            self.model.vector.lerp_(self.pull.anchor, self.attraction)
        return value


class _Step:
    """One solver's step over a fixed set of parameters, and the velocity it keeps."""

    def __init__(
        self,
        model: FlatModel,
        loss: Loss,
        lr: float,
        pull: Pull | None,
        solver: Solver,
        parameters: Parameters | None,
    ) -> None:
        self.model, self.loss, self.lr, self.pull = model, loss, lr, pull
        moving = dict(trainable(model.module)) if parameters is None else parameters
        self.parameters = tuple(moving.values())
        self.momentum = solver.momentum
        self.decays = solver.decays(moving) if solver.weight_decay else None
        # Detached aliases are written to without a no_grad block around every batch.
        self.targets = [parameter.detach() for parameter in self.parameters]
        self.velocity: list[Tensor] | None = None

    def __call__(self, batch: Batch) -> Tensor:
        value, grads = slopes(self.model, self.loss, batch, self.parameters)
        directions = self.directions(grads)
        if self.pull is not None:
            self.model.vector.lerp_(self.pull.anchor, self.lr * self.pull.mu)
        self.subtract(directions)
        return value

    def directions(self, grads: tuple[Tensor, ...]) -> Iterable[Tensor]:
        decayed: Iterable[Tensor] = grads
        if self.decays is not None:
            triples = zip(grads, self.targets, self.decays, strict=True)
            decayed = [grad.add(target, alpha=rate) for grad, target, rate in triples]
        return self._accelerated(decayed) if self.momentum else decayed

    def subtract(self, directions: Iterable[Tensor]) -> None:
        for target, direction in zip(self.targets, directions, strict=True):
            target.sub_(direction, alpha=self.lr)

    def _accelerated(self, grads: Iterable[Tensor]) -> list[Tensor]:
        if self.velocity is None:
            self.velocity = [grad.clone() for grad in grads]
            return self.velocity
        for velocity, grad in zip(self.velocity, grads, strict=True):
            velocity.mul_(self.momentum).add_(grad)
        return self.velocity
