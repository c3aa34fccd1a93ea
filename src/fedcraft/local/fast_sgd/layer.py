"""The contract of a layer with a hand-written SGD step, and the base of those with weights."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn


class FastLayer(Protocol):
    """One layer; it remembers what its backward pass needs."""

    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        """Return the layer's output; in training, remember what :meth:`backward` needs."""

    def backward(self, gradient: Tensor, lr: float, deeper: bool) -> Tensor:
        """Step down, and return the gradient at the input if there is anything ``deeper``."""


class WeightedLayer:
    """A layer with a weight and perhaps a bias."""

    def __init__(self, module: nn.Linear | nn.Conv2d) -> None:
        self.weight = module.weight.detach()
        self.bias = None if module.bias is None else module.bias.detach()
