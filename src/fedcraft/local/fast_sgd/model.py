"""The model with which a worker trains its clients: with hand-written steps where they exist."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcraft.local.fast_sgd.sequential import fast_layers
from fedcraft.local.objective import Loss
from fedcraft.models.flat import FlatModel

_aten = torch.ops.aten


def scratch_model(module: nn.Module) -> FlatModel:
    """Return the fastest scratch model for ``module``, which is changed in place.

    The hand-written steps are for CPUs.
    """
    on_cpu = next(module.parameters()).device.type == "cpu"
    if on_cpu and fast_layers(module) is not None:
        return SequentialModel(module)
    convolves = any(isinstance(part, nn.Conv2d) for part in module.modules())
    return ImageModel(module) if convolves else FlatModel(module)


class ImageModel(FlatModel):
    """A flat model with images in channels-last order, a tenth faster in a ResNet."""

    def __call__(self, inputs: Tensor) -> Any:
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return self.module(inputs)


class SequentialModel(ImageModel):
    """A flat model whose plain steps and gradient-free passes go through hand-written layers.

    The module does everything else (a graph for other solvers, hooks, training mode). The numbers
    are those of the module up to rounding; dropout draws the same masks.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._layers = fast_layers(module) or []
        # Layers before the first one with parameters need no gradient.
        self._first = next(i for i, layer in enumerate(self._layers) if hasattr(layer, "weight"))

    def __call__(self, inputs: Tensor) -> Any:
        if torch.is_autocast_enabled("cpu"):  # these layers are written for float32
            return super().__call__(inputs)
        if torch.is_grad_enabled():
            return self.module(inputs)
        return self._forward(inputs)

    def step(self, inputs: Tensor, labels: Tensor, loss: Loss, lr: float) -> Tensor:
        """Take one plain SGD step on a batch and return its loss before the step."""
        if torch.is_autocast_enabled("cpu"):
            return super().step(inputs, labels, loss, lr)
        with torch.inference_mode():
            outputs = self._forward(inputs)
        value, gradient = _loss_gradient(outputs, labels, loss)
        with torch.inference_mode():
            for place in range(len(self._layers) - 1, self._first - 1, -1):
                gradient = self._layers[place].backward(gradient, lr, place > self._first)
        return value

    def buffers(self) -> dict[str, Tensor]:
        """Return nothing: these modules have no buffers, so a search would be wasted."""
        return {}

    def _forward(self, inputs: Tensor) -> Tensor:
        for layer in self._layers:
            inputs = layer.forward(inputs, self.module.training)
        return inputs


def _loss_gradient(outputs: Tensor, labels: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
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
