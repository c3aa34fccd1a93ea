"""The inner loop that every local objective shares: stochastic gradient steps over batches.

Gradients come from ``torch.autograd.grad`` and are subtracted tensor by tensor from views of the
flat vector. Filling a flat gradient buffer instead (zero it, accumulate, subtract) reads and writes
the parameters' size twice more per batch, for the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedcraft.errors import require
from fedcraft.local.objective import Loss
from fedcraft.models.flat import FlatModel, trainable

Batch = tuple[Tensor, Tensor]
Parameters = Mapping[str, nn.Parameter]
Step = Callable[[Batch], Tensor]


class ProximalTerm(NamedTuple):
    """The proximal term (mu / 2) ||theta - anchor||^2."""

    anchor: Tensor
    mu: float


class DescentResult(NamedTuple):
    """FedNova's A_i = ||a_i||_1 and the mean loss over the batches (NaN without any)."""

    steps: float
    train_loss: float


@dataclass(frozen=True)
class Solver:
    """SGD: v <- momentum v + (gradient + weight_decay theta), theta <- theta - lr v.

    The velocity starts at zero in every round. ``decay_biases=False`` exempts parameters whose
    name ends in "bias" from the decay.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    decay_biases: bool = True

    def __post_init__(self) -> None:
        require(0 <= self.momentum < 1, "momentum", "a number in [0, 1)", self.momentum)
        require(self.weight_decay >= 0, "weight_decay", "a number >= 0", self.weight_decay)


def gradients(
    model: FlatModel, loss: Loss, batch: Batch, parameters: Iterable[nn.Parameter]
) -> tuple[Tensor, Sequence[Tensor]]:
    """Return the batch's mean loss and its gradients, zero for parameters without influence."""
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
    proximal: ProximalTerm | None = None,
    parameters: Parameters | None = None,
    shift: Tensor | None = None,
) -> DescentResult:
    """Step once per batch from ``model.vector``: theta <- theta - lr (v + mu (theta - a) + s).

    ``shift`` is s, a constant vector (SCAFFOLD, FedDyn). ``parameters`` restricts the descent to a
    subset (not together with ``proximal`` or ``shift``). The weight of the k-th gradient in the
    update follows FedNova's recursions for momentum and proximal solvers, combined:
    c <- momentum c + 1, A <- (1 - lr mu) A + c.
    """
    solver = Solver() if solver is None else solver
    attraction = lr * proximal.mu if proximal is not None else 0.0
    if solver == Solver() and parameters is None and attraction < 1:
        step = _plain_step(model, loss, lr, proximal)
    else:
        step = _solver_step(model, loss, lr, proximal, solver, parameters)
    losses: list[Tensor] = []
    counter = weight = 0.0
    for batch in batches:
        losses.append(step(batch))
        if shift is not None:
            model.vector.sub_(shift, alpha=lr)
        counter = solver.momentum * counter + 1.0
        weight = (1.0 - attraction) * weight + counter
    return DescentResult(weight, mean_loss(losses))


def _plain_step(model: FlatModel, loss: Loss, lr: float, proximal: ProximalTerm | None) -> Step:
    """Return a plain SGD step of the model, followed by the proximal term: with a = lr mu,

    (1 - a) (theta - lr / (1 - a) g) + a anchor.
    """
    attraction = lr * proximal.mu if proximal is not None else 0.0

    def step(batch: Batch) -> Tensor:
        value = model.step(*batch, loss, lr / (1 - attraction))
        if proximal is not None:
            model.vector.lerp_(proximal.anchor, attraction)
        return value

    return step


def _solver_step(
    model: FlatModel,
    loss: Loss,
    lr: float,
    proximal: ProximalTerm | None,
    solver: Solver,
    parameters: Parameters | None,
) -> Step:
    """Return the step of any solver over some of the parameters, with its velocity."""
    moving = dict(trainable(model.module)) if parameters is None else parameters
    # Detached aliases are written to without a no_grad block around every batch.
    targets = [parameter.detach() for parameter in moving.values()]
    spared = () if solver.decay_biases else ("bias",)
    decays = [0.0 if name.endswith(spared) else solver.weight_decay for name in moving]
    velocity: list[Tensor] = []

    def step(batch: Batch) -> Tensor:
        value, directions = gradients(model, loss, batch, moving.values())
        if solver.weight_decay:
            triples = zip(directions, targets, decays, strict=True)
            directions = [grad.add(target, alpha=rate) for grad, target, rate in triples]
        if solver.momentum:
            directions = _accelerate(velocity, directions, solver.momentum)
        if proximal is not None:
            model.vector.lerp_(proximal.anchor, lr * proximal.mu)
        for target, direction in zip(targets, directions, strict=True):
            target.sub_(direction, alpha=lr)
        return value

    return step


def _accelerate(velocity: list[Tensor], grads: Sequence[Tensor], momentum: float) -> list[Tensor]:
    """Update the velocity in place: v <- momentum v + gradient, the gradient alone at first."""
    if not velocity:
        velocity += [grad.clone() for grad in grads]
        return velocity
    for kept, grad in zip(velocity, grads, strict=True):
        kept.mul_(momentum).add_(grad)
    return velocity
