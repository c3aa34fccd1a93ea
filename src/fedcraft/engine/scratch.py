"""The model a worker trains everybody with: a chain where the module is one, else as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcraft.engine.chain import Link, chain_of
from fedcraft.local import Loss
from fedcraft.models.flat import FlatModel

__all__ = ["ChainModel", "ImageModel", "scratch_model"]

_aten = torch.ops.aten


def scratch_model(module: nn.Module) -> FlatModel:
    """Make ``module`` the scratch model of a bench; it is changed in place."""
    model = FlatModel(module)
    links = chain_of(module)
    if links is not None:
        return ChainModel(model, links)
    convolves = any(isinstance(part, nn.Conv2d) for part in module.modules())
    return ImageModel(model) if convolves else model


class ImageModel(FlatModel):
    """A flat model that sees images pixel by pixel in memory, a tenth faster in a ResNet."""

    def __init__(self, model: FlatModel) -> None:
        self.__dict__.update(model.__dict__)

    def __call__(self, inputs: Tensor) -> Any:
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return self.module(inputs)


class ChainModel(FlatModel):
    """A flat model whose plain steps and gradient-free passes go through a chain.

    Everything else (a graph for other solvers, hooks, training mode) is the module's. The numbers
    are those of the module up to rounding; dropout draws the same masks.
    """

    def __init__(self, model: FlatModel, links: list[Link]) -> None:
        self.__dict__.update(model.__dict__)
        self._links = links
        # Below the first layer with parameters there is nothing that needs a gradient.
        self._first = next(i for i, link in enumerate(links) if hasattr(link, "weight"))

    def __call__(self, inputs: Tensor) -> Any:
        if torch.is_grad_enabled():
            return self.module(inputs)
        return self._forward(inputs)

    def step(self, inputs: Tensor, labels: Tensor, loss: Loss, lr: float) -> Tensor:
        """Take one plain SGD step on a batch and return its loss before the step."""
        with torch.inference_mode():
            outputs = self._forward(inputs)
        value, gradient = _top(outputs, labels, loss)
        with torch.inference_mode():
            for place in range(len(self._links) - 1, self._first - 1, -1):
                gradient = self._links[place].backward(gradient, lr, place > self._first)
        return value

    def buffers(self) -> dict[str, Tensor]:
        """Return nothing: a chain has no buffers, and need not look for them."""
        return {}

    def _forward(self, inputs: Tensor) -> Tensor:
        for link in self._links:
            inputs = link.forward(inputs, self.module.training)
        return inputs


def _top(outputs: Tensor, labels: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient at the outputs; cross-entropy's is softmax - one-hot."""
    if loss is not cross_entropy or labels.is_floating_point():
        leaf = outputs.clone().requires_grad_()
        value = loss(leaf, labels)
        return value.detach(), torch.autograd.grad(value, leaf)[0]
    with torch.inference_mode():
        logs = torch.log_softmax(outputs, 1)
        value, weight = _aten.nll_loss_forward(logs, labels, None, 1, -100)
        gradient = _aten.nll_loss_backward(value.new_ones(()), logs, labels, None, 1, -100, weight)
        return value, _aten._log_softmax_backward_data(gradient, logs, 1, logs.dtype)
