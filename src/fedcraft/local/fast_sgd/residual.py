"""The layers of a residual network with hand-written SGD steps, in channels-last order throughout.

The arithmetic is that of autograd. What is saved is everything around it: no graph, no gradient
tensors that live until the end of the step, ReLU and the shortcut's sum in place, and a
channels-last copy of every weight that serves the forward and both backward products.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedcraft.local.fast_sgd.convolution import backward
from fedcraft.local.fast_sgd.layer import FastLayer, WeightedLayer
from fedcraft.models.resnet import Block

_aten = torch.ops.aten
_LAST = torch.channels_last


class PaddedConvolution(WeightedLayer):
    """A convolution with any stride and padding, by oneDNN."""

    def __init__(self, module: nn.Conv2d) -> None:
        super().__init__(module)
        self._stride, self._padding = list(module.stride), [int(side) for side in module.padding]

    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        self._inputs = inputs.contiguous(memory_format=_LAST)
        self._ordered = self.weight.contiguous(memory_format=_LAST)
        return torch.conv2d(self._inputs, self._ordered, self.bias, self._stride, self._padding)

    def backward(self, gradient: Tensor, lr: float, deeper: bool) -> Tensor:
        wanted = [deeper, True, self.bias is not None]
        below, weight, bias = backward(
            self._inputs, self._ordered, gradient, wanted, self._stride, self._padding
        )
        self.weight.sub_(weight, alpha=lr)
        if self.bias is not None:
            self.bias.sub_(bias, alpha=lr)
        return below if deeper else gradient


class Normalization:
    """GroupNorm over images."""

    def __init__(self, module: nn.GroupNorm) -> None:
        self.weight, self.bias = module.weight.detach(), module.bias.detach()
        self._groups, self._eps = module.num_groups, module.eps

    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        self._inputs = inputs.contiguous(memory_format=_LAST)
        outputs: Tensor
        outputs, self._mean, self._scale = _aten.native_group_norm(
            self._inputs, self.weight, self.bias, *self._shape, self._groups, self._eps
        )
        return outputs

    def backward(self, gradient: Tensor, lr: float, deeper: bool) -> Tensor:
        gradient = gradient.contiguous(memory_format=_LAST)
        norm = self._mean, self._scale, self.weight, *self._shape, self._groups
        below: Tensor
        below, weight, bias = _aten.native_group_norm_backward(
            gradient, self._inputs, *norm, [True, True, True]
        )
        self.weight.sub_(weight, alpha=lr)
        self.bias.sub_(bias, alpha=lr)
        return below

    @property
    def _shape(self) -> tuple[int, int, int]:
        count, channels, height, width = self._inputs.shape
        return count, channels, height * width


class MeanPool:
    """The mean over an image's pixels."""

    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        self._shape = inputs.shape
        return inputs.mean((2, 3), keepdim=True)

    def backward(self, gradient: Tensor, lr: float, deeper: bool) -> Tensor:
        pixels = self._shape[2] * self._shape[3]
        spread = (gradient / pixels).expand(self._shape)
        return spread.contiguous(memory_format=_LAST)


class ResidualBlock:
    """relu(chain(x) + shortcut(x)), the shortcut of option A: see ``models.resnet.Block``."""

    def __init__(self, module: Block, chain: Sequence[FastLayer]) -> None:
        self._chain, self.weight = chain, module.conv1.weight.detach()
        self._stride, self._padding = module.stride, module.padding

    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        outputs = inputs
        for layer in self._chain:
            outputs = layer.forward(outputs, training)
        self._channels(outputs).add_(self._pixels(inputs))
        self._outputs = outputs.relu_()
        return outputs

    def backward(self, gradient: Tensor, lr: float, deeper: bool) -> Tensor:
        around: Tensor = _aten.threshold_backward(gradient, self._outputs, 0)
        below = around
        for layer in reversed(self._chain):
            below = layer.backward(below, lr, True)
        self._pixels(below).add_(self._channels(around))
        return below

    def _pixels(self, images: Tensor) -> Tensor:
        """The pixels of the block's input that the shortcut keeps."""
        return images if self._stride == 1 else images[:, :, :: self._stride, :: self._stride]

    def _channels(self, images: Tensor) -> Tensor:
        """The channels of the block's output that the shortcut reaches."""
        width = images.shape[1] - 2 * self._padding
        return images.narrow(1, self._padding, width)
