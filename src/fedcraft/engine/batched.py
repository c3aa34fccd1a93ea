"""SGD steps of many clients at once: their models lie side by side, every product is a batch.

Two ways: :class:`BatchedChain` writes the backward pass of a chain of linear layers out as batched
matrix products; :class:`BatchedModule` leaves it to ``torch.func`` (vmap over grad), for any module
without buffers and on any device. Both do what each client would do alone, up to rounding: a short
last batch is padded with rows of weight zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy, log_softmax

from fedcraft.engine.chain import chain_of, leaves
from fedcraft.updates import Layout

__all__ = ["Batched", "batched_model"]

_aten = torch.ops.aten


class Batched(Protocol):
    """Models of several clients, one row each."""

    def load(self, theta: Tensor, clients: int) -> None:
        """Set every client's model to ``theta``."""

    def step(
        self, inputs: Tensor, labels: Tensor, weights: Tensor, lr: float, draws: Sequence[Draw]
    ) -> Tensor:
        """Step the first ``len(inputs)`` clients down sum_j w_ij loss_ij; return these losses."""

    def pull(self, anchor: Tensor, share: float, clients: int) -> None:
        """Move the first ``clients`` models by ``share`` of their way to ``anchor``."""

    def row(self, client: int) -> Tensor:
        """Return one client's model as a flat vector."""


Draw = torch.Generator


def batched_model(module: nn.Module, device: torch.device) -> Batched | None:
    """Return the fastest way to train many copies of ``module``, None if there is none.

    On a CPU only the written-out chain is ever faster than one client after the other.
    """
    if device.type == "cpu":
        layers = linear_chain(module)
        return None if layers is None else BatchedChain(layers)
    has_buffers = next(module.buffers(), None) is not None
    return None if has_buffers else BatchedModule(module.to(device))


def linear_chain(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a sequence of Flatten, Linear, ReLU and Dropout; None for all else."""
    layers = list(leaves(module))
    known = (nn.Flatten, nn.Linear, nn.ReLU, nn.Dropout)
    if chain_of(module) is None or not all(type(layer) in known for layer in layers):
        return None
    return layers


class BatchedChain:
    """Weights (clients, out, in) layer by layer; ReLU and dropout work on the stack as it is."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = [layer for layer in layers if type(layer) is not nn.Flatten]
        self._first = [type(layer) for layer in self._layers].index(nn.Linear)
        self._parameters: dict[int, tuple[Tensor, Tensor | None]] = {}

    def load(self, theta: Tensor, clients: int) -> None:
        start = 0
        for place, layer in enumerate(self._layers):
            if not isinstance(layer, nn.Linear):
                continue
            stop = start + layer.weight.numel()
            weight = theta[start:stop].view(1, *layer.weight.shape).repeat(clients, 1, 1)
            start, bias = stop, None
            if layer.bias is not None:
                stop = start + layer.bias.numel()
                bias, start = theta[start:stop].repeat(clients, 1), stop
            self._parameters[place] = weight, bias

    @torch.inference_mode()
    def step(
        self, inputs: Tensor, labels: Tensor, weights: Tensor, lr: float, draws: Sequence[Draw]
    ) -> Tensor:
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
        self, place: int, layer: nn.Module, signal: Tensor, weights: Tensor, draws: Sequence[Draw]
    ) -> tuple[Tensor, Tensor | None]:
        if isinstance(layer, nn.Linear):
            weight, bias = self._parameters[place]
            weight = weight[: len(signal)].transpose(1, 2)
            if bias is None:
                return torch.bmm(signal, weight), signal
            return torch.baddbmm(bias[: len(signal)].unsqueeze(1), signal, weight), signal
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
        active = len(gradient)
        weight, bias = self._parameters[place]
        deeper = torch.bmm(gradient, weight[:active]) if place > self._first else gradient
        weight[:active].baddbmm_(gradient.transpose(1, 2), kept, alpha=-lr)
        if bias is not None:
            bias[:active].sub_(gradient.sum(1), alpha=lr)
        return deeper

    def pull(self, anchor: Tensor, share: float, clients: int) -> None:
        start = 0
        for weight, bias in self._parameters.values():
            for stack in (weight, bias) if bias is not None else (weight,):
                stop = start + stack[0].numel()
                stack[:clients].lerp_(anchor[start:stop].view(stack.shape[1:]), share)
                start = stop

    def row(self, client: int) -> Tensor:
        parts = [stack for pair in self._parameters.values() for stack in pair if stack is not None]
        return torch.cat([stack[client].reshape(-1) for stack in parts])


def _masks(signal: Tensor, weights: Tensor, keep: float, draws: Sequence[Draw]) -> Tensor:
    """Draw every client's mask from its own stream, over its real rows: as it would alone."""
    masks = torch.zeros_like(signal)
    for mask, weight, draw in zip(masks, weights, draws, strict=False):
        rows = int(torch.count_nonzero(weight))
        mask[:rows] = torch.empty_like(mask[:rows]).bernoulli_(keep, generator=draw).div_(keep)
    return masks


class BatchedModule:
    """vmap over grad: any module without buffers; dropout masks are the device's own."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module.train()
        self._layout = Layout.from_module(module, "whole")
        self._device = next(module.parameters()).device
        self._stack = torch.empty(0)
        single = grad_and_value(self._loss)
        self._slopes = vmap(single, randomness="different")

    def _loss(self, vector: Tensor, inputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        outputs = functional_call(self._module, self._layout.unflatten(vector), (inputs,))
        return (cross_entropy(outputs, labels, reduction="none") * weights).sum()

    def load(self, theta: Tensor, clients: int) -> None:
        self._stack = theta.to(self._device).repeat(clients, 1)

    def step(
        self, inputs: Tensor, labels: Tensor, weights: Tensor, lr: float, draws: Sequence[Draw]
    ) -> Tensor:
        batch = (tensor.to(self._device) for tensor in (inputs, labels, weights))
        models = self._stack[: len(inputs)]
        slopes, losses = self._slopes(models, *batch)
        models.sub_(slopes, alpha=lr)
        found: Tensor = losses.detach().cpu()
        return found

    def pull(self, anchor: Tensor, share: float, clients: int) -> None:
        self._stack[:clients].lerp_(anchor.to(self._device), share)

    def row(self, client: int) -> Tensor:
        return self._stack[client].cpu()
