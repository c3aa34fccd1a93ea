"""Trains groups of clients side by side: one stack of models, batched products.

:class:`BatchedSequential` writes out the backward pass of a sequence of linear layers as batched
matrix products; :class:`BatchedModule` leaves it to ``torch.func`` (vmap over grad), for any module
without buffers and on any device. Both compute what each client would compute alone, up to
rounding: a short last batch is padded with rows of weight zero.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy, log_softmax

from fedcraft.local.descent import Batch, Solver
from fedcraft.local.fast_sgd.sequential import fast_layers, leaves
from fedcraft.local.objective import LocalObjective, LocalResult, LocalTask
from fedcraft.local.proximal import Proximal
from fedcraft.local.sgd import PlainSGD
from fedcraft.updates import Layout

_LARGEST = 16
_aten = torch.ops.aten

WeightedBatch = tuple[Tensor, Tensor, Tensor]  # inputs, labels, weights; clients first


def group_size(clients: int, device: torch.device) -> int:
    """Return how many of a cohort train side by side: fixed by the cohort, not by the workers."""
    return clients if device.type != "cpu" else min(_LARGEST, -(-clients // 2))


def make_group_trainer(
    objective: LocalObjective,
    module: nn.Module,
    device: torch.device,
    precision: torch.dtype = torch.float32,
) -> GroupTrainer | None:
    """Return the group trainer of a run, None if its clients must be trained one by one."""
    if type(objective) not in (PlainSGD, Proximal) or objective.loss is not cross_entropy:
        return None
    if getattr(objective, "solver", None) != Solver():
        return None
    model = batched_model(copy.deepcopy(module), device, precision)
    return None if model is None else GroupTrainer(model, getattr(objective, "mu", 0.0))


class GroupTrainer:
    """Plain or proximal SGD on a stack of models."""

    def __init__(self, model: BatchedModel, mu: float = 0.0) -> None:
        self._model, self._mu = model, mu

    def train(self, tasks: Sequence[LocalTask], rows: Sequence[Tensor]) -> list[LocalResult]:
        """Train the clients and write their rows g_i; those with most batches go first."""
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
            # FedNova's A_i = sum_k (1 - lr mu)^k
            steps = float(sum((1 - lr * self._mu) ** k for k in range(count)))
            results[client] = LocalResult(len(tasks[client].data), steps, mean)
        return [results[client] for client in range(len(tasks))]

    def _descend(
        self, batches: list[list[Batch]], tasks: list[LocalTask], theta: Tensor, lr: float
    ) -> Tensor:
        draws = [Generator().manual_seed(task.address.dropout_seed()) for task in tasks]
        losses = torch.zeros(len(tasks), dtype=torch.float64)
        attraction = lr * self._mu  # below 1: the choice of the executor requires it
        for index in range(max(len(own) for own in batches)):
            batch = _padded([own[index] for own in batches if len(own) > index])
            active = len(batch[0])
            # The step first, then the proximal term, as a client does alone.
            losses[:active] += self._model.step(batch, lr / (1 - attraction), draws)
            if attraction:
                self._model.lerp(theta, attraction, active)
        return losses


def _padded(batches: Sequence[Batch]) -> WeightedBatch:
    """Stack one batch of each client, padded to the size of the largest."""
    sizes = [len(labels) for _, labels in batches]
    width = max(sizes)
    if min(sizes) == width:
        inputs, labels = (torch.stack(parts) for parts in zip(*batches, strict=True))
        return inputs, labels, torch.full(labels.shape, 1 / width)
    example, _ = batches[0]
    inputs = example.new_zeros(len(batches), width, *example.shape[1:])
    labels = torch.zeros(len(batches), width, dtype=torch.int64)
    weights = torch.zeros(len(batches), width)
    for place, (own, answers) in enumerate(batches):
        inputs[place, : len(answers)] = own
        labels[place, : len(answers)] = answers
        weights[place, : len(answers)] = 1 / len(answers)
    return inputs, labels, weights


class BatchedModel(Protocol):
    """Models of several clients, one row each."""

    def load(self, theta: Tensor, clients: int) -> None:
        """Set every client's model to ``theta``."""

    def step(self, batch: WeightedBatch, lr: float, draws: Sequence[Generator]) -> Tensor:
        """Step the batch's clients, the first ones, down sum_j w_ij loss_ij; return the losses."""

    def lerp(self, anchor: Tensor, share: float, clients: int) -> None:
        """Move the first ``clients`` models by ``share`` of their way to ``anchor``."""

    def row(self, client: int) -> Tensor:
        """Return one client's model as a flat vector."""


def batched_model(
    module: nn.Module, device: torch.device, precision: torch.dtype = torch.float32
) -> BatchedModel | None:
    """Return the fastest way to train many copies of ``module``, None if there is none.

    On a CPU only the hand-written steps, in float32, are faster than one client after the other.
    """
    if device.type != "cpu" or precision != torch.float32:
        has_buffers = next(module.buffers(), None) is not None
        return None if has_buffers else BatchedModule(module.to(device))
    layers = list(leaves(module))
    known = (nn.Flatten, nn.Linear, nn.ReLU, nn.Dropout)
    if fast_layers(module) is None or not all(type(layer) in known for layer in layers):
        return None
    return BatchedSequential(layers)


class BatchedSequential:
    """Weights (clients, out, in) layer by layer; ReLU and dropout work on the whole stack."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = [layer for layer in layers if type(layer) is not nn.Flatten]
        self._first = [type(layer) for layer in self._layers].index(nn.Linear)
        self._stacks: list[list[Tensor]] = []  # per layer: weights and biases, clients first

    def load(self, theta: Tensor, clients: int) -> None:
        self._stacks, start = [], 0
        for layer in self._layers:
            self._stacks.append([])
            for parameter in layer.parameters():
                stop = start + parameter.numel()
                one = theta[start:stop].view(parameter.shape)
                self._stacks[-1].append(one.repeat(clients, *(1 for _ in one.shape)))
                start = stop

    @torch.inference_mode()
    def step(self, batch: WeightedBatch, lr: float, draws: Sequence[Generator]) -> Tensor:
        inputs, labels, weights = batch
        kept: list[Tensor | None] = []
        signal = inputs.flatten(2)
        for place, layer in enumerate(self._layers):
            signal, memory = self._forward(place, layer, signal, weights, draws)
            kept.append(memory)
        logs = log_softmax(signal, 2)
        losses = -logs.gather(2, labels.unsqueeze(2)).squeeze(2)
        gradient = logs.exp_().scatter_add_(
            2, labels.unsqueeze(2), torch.full_like(labels, -1, dtype=logs.dtype).unsqueeze(2)
        )
        gradient *= weights.unsqueeze(2)
        for place in range(len(self._layers) - 1, self._first - 1, -1):
            gradient = self._backward(place, gradient, kept[place], lr)
        return (losses * weights).sum(1)

    def _forward(
        self,
        place: int,
        layer: nn.Module,
        signal: Tensor,
        weights: Tensor,
        draws: Sequence[Generator],
    ) -> tuple[Tensor, Tensor | None]:
        if isinstance(layer, nn.Linear):
            weight, *bias = (stack[: len(signal)] for stack in self._stacks[place])
            if not bias:
                return torch.bmm(signal, weight.transpose(1, 2)), signal
            return torch.baddbmm(bias[0].unsqueeze(1), signal, weight.transpose(1, 2)), signal
        if isinstance(layer, nn.Dropout):
            mask = _masks(signal, weights, 1.0 - layer.p, draws) if layer.p else None
            return (signal, None) if mask is None else (signal * mask, mask)
        outputs = signal.relu_() if place > self._first else signal.relu()
        return outputs, outputs

    def _backward(self, place: int, gradient: Tensor, kept: Tensor | None, lr: float) -> Tensor:
        layer = self._layers[place]
        if isinstance(layer, nn.Dropout) or kept is None:
            return gradient if kept is None else gradient * kept
        if isinstance(layer, nn.ReLU):
            below: Tensor = _aten.threshold_backward(gradient, kept, 0)
            return below
        weight, *bias = (stack[: len(gradient)] for stack in self._stacks[place])
        deeper = torch.bmm(gradient, weight) if place > self._first else gradient
        weight.baddbmm_(gradient.transpose(1, 2), kept, alpha=-lr)
        if bias:
            bias[0].sub_(gradient.sum(1), alpha=lr)
        return deeper

    def lerp(self, anchor: Tensor, share: float, clients: int) -> None:
        start = 0
        for stack in (stack for stacks in self._stacks for stack in stacks):
            stop = start + stack[0].numel()
            stack[:clients].lerp_(anchor[start:stop].view(stack.shape[1:]), share)
            start = stop

    def row(self, client: int) -> Tensor:
        stacks = (stack for stacks in self._stacks for stack in stacks)
        return torch.cat([stack[client].reshape(-1) for stack in stacks])


def _masks(signal: Tensor, weights: Tensor, keep: float, draws: Sequence[Generator]) -> Tensor:
    """Draw every client's mask from its own stream, over its real rows, as in separate training."""
    masks = torch.zeros_like(signal)
    for mask, weight, draw in zip(masks, weights, draws, strict=False):
        rows = int(torch.count_nonzero(weight))
        mask[:rows] = torch.empty_like(mask[:rows]).bernoulli_(keep, generator=draw).div_(keep)
    return masks


class BatchedModule:
    """vmap over grad: any module without buffers; the device draws the dropout masks."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module.train()
        self._layout = Layout.from_module(module, "whole")
        self._device = next(module.parameters()).device
        self._stack = torch.empty(0)
        self._gradients = vmap(grad_and_value(self._loss), randomness="different")

    def _loss(self, vector: Tensor, inputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        outputs = functional_call(self._module, self._layout.unflatten(vector), (inputs,))
        return (cross_entropy(outputs, labels, reduction="none") * weights).sum()

    def load(self, theta: Tensor, clients: int) -> None:
        self._stack = theta.to(self._device).repeat(clients, 1)

    def step(self, batch: WeightedBatch, lr: float, draws: Sequence[Generator]) -> Tensor:
        models = self._stack[: len(batch[0])]
        gradients, losses = self._gradients(models, *(part.to(self._device) for part in batch))
        models.sub_(gradients, alpha=lr)
        found: Tensor = losses.detach().cpu()
        return found

    def lerp(self, anchor: Tensor, share: float, clients: int) -> None:
        self._stack[:clients].lerp_(anchor.to(self._device), share)

    def row(self, client: int) -> Tensor:
        return self._stack[client].cpu()
