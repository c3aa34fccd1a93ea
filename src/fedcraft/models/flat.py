"""A module whose trainable parameters are one flat vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedcraft.errors import InputError


class FlatModel:
    """A module whose parameters are views of one flat tensor.

    ``vector`` holds the trainable floating-point parameters in the order of
    ``named_parameters()``: loading a model is one copy, and nothing is ever gathered or scattered.
    Frozen parameters and buffers stay in the module.

    The given module is changed in place. Parameters stay contiguous: a channels_last weight would
    change the order of the coordinates.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = [parameter for _, parameter in trainable(module)]
        self.vector = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        places = torch.split(self.vector, [parameter.numel() for parameter in self.parameters])
        for parameter, place in zip(self.parameters, places, strict=True):
            parameter.data = place.view(parameter.shape)

    def __call__(self, inputs: Tensor) -> Any:
        return self.module(inputs)

    def __len__(self) -> int:
        return self.vector.numel()

    def load(self, vector: Tensor) -> None:
        """Copy ``vector`` into the parameters."""
        if vector.shape != self.vector.shape:
            raise InputError(
                f"vector must have shape {tuple(self.vector.shape)}, but it has "
                f"{tuple(vector.shape)}"
            )
        self.vector.copy_(vector)

    def descend(self, loss: Tensor, lr: float) -> None:
        """Take one plain SGD step down ``loss``; parameters without a gradient do not change.

        The gradients of ``backward()`` would have to be zeroed and added up first: two passes over
        d numbers.
        """
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=lr)

    def step(
        self, inputs: Tensor, labels: Tensor, loss: Callable[[Tensor, Tensor], Tensor], lr: float
    ) -> Tensor:
        """Take one plain SGD step on a batch and return its loss before the step."""
        value = loss(self(inputs), labels)
        self.descend(value, lr)
        return value.detach()

    def buffers(self) -> dict[str, Tensor]:
        """Return copies of the module's buffers by name (they are not part of ``vector``)."""
        return {name: value.clone() for name, value in self.module.named_buffers()}

    def load_buffers(self, buffers: dict[str, Tensor]) -> None:
        """Copy the given buffers into the module's."""
        own = dict(self.module.named_buffers())
        if set(own) != set(buffers):
            raise InputError(f"buffers must be {sorted(own)}, but they are {sorted(buffers)}")
        for name, value in buffers.items():
            own[name].copy_(value)


def trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the trainable floating-point parameters; they must agree in type and device."""
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    if not named:
        raise InputError("module must have trainable parameters, but it has none")
    kinds = {(p.dtype, p.device) for _, p in named}
    if len(kinds) > 1 or not named[0][1].is_floating_point():
        raise InputError(f"parameters must be of one float type on one device, not {kinds}")
    return named
