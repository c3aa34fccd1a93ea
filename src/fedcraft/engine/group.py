"""A group of clients trained side by side, as each of them would train alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcraft.engine.batched import Batched, batched_model
from fedcraft.errors import ConfigError
from fedcraft.local import LocalObjective, LocalResult, LocalTask
from fedcraft.local.descent import Batch, Solver
from fedcraft.local.proximal import Proximal
from fedcraft.local.sgd import PlainSGD

__all__ = ["Group", "group_of", "group_size"]

_LARGEST = 16


def group_size(clients: int, device: torch.device) -> int:
    """Return how many of a cohort train side by side: fixed by the cohort, not by the workers."""
    return clients if device.type != "cpu" else min(_LARGEST, -(-clients // 2))


def group_of(objective: LocalObjective, module: nn.Module, device: torch.device) -> Group | None:
    """Return the group trainer of a run, None if its clients must be trained one by one."""
    if type(objective) not in (PlainSGD, Proximal) or objective.loss is not cross_entropy:
        return None
    if getattr(objective, "solver", None) != Solver():
        return None
    model = batched_model(copy.deepcopy(module), device)
    return None if model is None else Group(model, getattr(objective, "mu", 0.0))


@dataclass(frozen=True)
class _Step:
    """The k-th batches of those who have one, padded to one size; padding weighs nothing."""

    inputs: Tensor
    labels: Tensor
    weights: Tensor


class Group:
    """Plain or proximal SGD on a stack of models."""

    def __init__(self, model: Batched, mu: float = 0.0) -> None:
        self._model, self._mu = model, mu

    def train(self, tasks: Sequence[LocalTask], rows: Sequence[Tensor]) -> list[LocalResult]:
        """Train the clients and write their rows g_i; most batches first is fastest."""
        batches = [list(task.batches()) for task in tasks]
        order = sorted(range(len(tasks)), key=lambda i: -len(batches[i]))
        theta, lr = tasks[0].theta, tasks[0].lr
        self._model.load(theta, len(tasks))
        losses = self._descend([batches[i] for i in order], [tasks[i] for i in order], theta, lr)
        results: dict[int, LocalResult] = {}
        for place, client in enumerate(order):
            torch.sub(theta, self._model.row(place), out=rows[client])
            count = len(batches[client])
            mean = float(losses[place]) / count if count else float("nan")
            results[client] = LocalResult(len(tasks[client].data), self._weight(lr, count), mean)
        return [results[client] for client in range(len(tasks))]

    def _descend(
        self, batches: list[list[Batch]], tasks: list[LocalTask], theta: Tensor, lr: float
    ) -> Tensor:
        draws = [torch.Generator().manual_seed(task.address.dropout_seed()) for task in tasks]
        losses = torch.zeros(len(tasks), dtype=torch.float64)
        attraction = lr * self._mu
        if attraction >= 1:
            raise ConfigError(
                f"executor: 'vectorized' needs client_lr * mu < 1, found {attraction}; use "
                "'processes'"
            )
        for index in range(max(len(own) for own in batches)):
            step = _padded([own[index] for own in batches if len(own) > index])
            active = len(step.labels)
            parts = (step.inputs, step.labels, step.weights)
            # Step first, pull then, as a client does alone.
            losses[:active] += self._model.step(*parts, lr / (1 - attraction), draws)
            if attraction:
                self._model.pull(theta, attraction, active)
        return losses

    def _weight(self, lr: float, steps: int) -> float:
        """FedNova's A_i = sum_k (1 - lr mu)^k."""
        return float(sum((1 - lr * self._mu) ** k for k in range(steps)))


def _padded(batches: Sequence[Batch]) -> _Step:
    sizes = [len(labels) for _, labels in batches]
    width = max(sizes)
    if min(sizes) == width:
        inputs, labels = (torch.stack(parts) for parts in zip(*batches, strict=True))
        return _Step(inputs, labels, torch.full(labels.shape, 1 / width))
    example, _ = batches[0]
    inputs = example.new_zeros(len(batches), width, *example.shape[1:])
    labels = torch.zeros(len(batches), width, dtype=torch.int64)
    weights = torch.zeros(len(batches), width)
    for place, (own, answers) in enumerate(batches):
        inputs[place, : len(answers)] = own
        labels[place, : len(answers)] = answers
        weights[place, : len(answers)] = 1 / len(answers)
    return _Step(inputs, labels, weights)
