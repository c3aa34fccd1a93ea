"""The layers of sequential and residual networks with hand-written SGD steps: no graph is built.

Three things make this faster than ``backward()`` and a step: the update goes straight into the
weights (W <- W - lr G^T X is one matrix product that accumulates), ReLU comes after max-pooling
(the same numbers on a quarter of the pixels), and convolutions take the routes of
:mod:`fedcraft.local.fast_sgd.convolution`. Residual blocks are in
:mod:`fedcraft.local.fast_sgd.residual`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedcraft.local.fast_sgd import convolution
from fedcraft.local.fast_sgd.layer import FastLayer, WeightedLayer
from fedcraft.local.fast_sgd.residual import (
    MeanPool,
    Normalization,
    PaddedConvolution,
    ResidualBlock,
)
from fedcraft.models.resnet import Block, ResNet


class _Linear(WeightedLayer):
    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        self.inputs = inputs
        return nn.functional.linear(inputs, self.weight, self.bias)

    def backward(self, gradient: Tensor, lr: float, deeper: bool) -> Tensor:
        below = gradient.mm(self.weight) if deeper else gradient
        self.weight.addmm_(gradient.t(), self.inputs, alpha=-lr)
        if self.bias is not None:
            self.bias.sub_(gradient.sum(0), alpha=lr)
        return below


class _Convolution(WeightedLayer):
    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        self._by_fourier = convolution.fourier(inputs, self.weight)
        self.inputs = convolution.ordered(inputs, self._by_fourier)
        return convolution.forward(self.inputs, self.weight, self.bias)

    def backward(self, gradient: Tensor, lr: float, deeper: bool) -> Tensor:
        gradient = convolution.ordered(gradient, self._by_fourier)
        below = gradient
        if deeper:
            below = convolution.input_gradient(self.inputs, self.weight, gradient)
        step = convolution.weight_gradient(self.inputs, self.weight, gradient)
        self.weight.sub_(step, alpha=lr)
        if self.bias is not None:
            self.bias.sub_(gradient.sum((0, 2, 3)), alpha=lr)
        return below


class _Relu:
    """In place, except on data that may belong to the caller."""

    in_place = False

    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        self.outputs = inputs.relu_() if self.in_place else inputs.relu()
        return self.outputs

    def backward(self, gradient: Tensor, lr: float, deeper: bool) -> Tensor:
        below: Tensor = torch.ops.aten.threshold_backward(gradient, self.outputs, 0)
        return below


class _Pool:
    def __init__(self, side: int) -> None:
        self.window = [side, side]

    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        self.inputs = inputs.contiguous(memory_format=torch.channels_last)
        pooled: Tensor
        pooled, self.places = torch.ops.aten.max_pool2d_with_indices(
            self.inputs, self.window, self.window
        )
        return pooled

    def backward(self, gradient: Tensor, lr: float, deeper: bool) -> Tensor:
        below: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            gradient, self.inputs, self.window, self.window, [0, 0], [1, 1], False, self.places
        )
        return below


class _Flatten:
    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        self.shape = inputs.shape
        return inputs.flatten(1)

    def backward(self, gradient: Tensor, lr: float, deeper: bool) -> Tensor:
        return gradient.view(self.shape)


class _Dropout:
    """Draws the mask that ``nn.Dropout`` draws, from the same generator."""

    def __init__(self, rate: float) -> None:
        self.keep = 1.0 - rate
        self.mask: Tensor | None = None

    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        self.mask = None
        if not training or self.keep == 1.0:
            return inputs
        self.mask = torch.empty_like(inputs).bernoulli_(self.keep).div_(self.keep)
        return inputs * self.mask

    def backward(self, gradient: Tensor, lr: float, deeper: bool) -> Tensor:
        return gradient if self.mask is None else gradient * self.mask


_FOR_IMAGES = (
    _Convolution,
    PaddedConvolution,
    Normalization,
    ResidualBlock,
    MeanPool,
    _Pool,
    _Flatten,
)


def fast_layers(module: nn.Module) -> list[FastLayer] | None:
    """Return the layers of a sequence, or None if one of them is not supported."""
    layers = list(leaves(module))
    known = [found for layer in layers if (found := _fast_layer(layer)) is not None]
    owned = [id(p) for layer in layers for p in layer.parameters()]
    whole = {id(p) for p in module.parameters()} == set(owned) and not list(module.buffers())
    trainable = all(p.requires_grad and p.dtype == torch.float32 for p in module.parameters())
    # A tied weight has two gradients.
    once = len(set(owned)) == len(owned) and len(set(map(id, layers))) == len(layers)
    if len(known) != len(layers) or not (whole and trainable and once and owned):
        return None
    if _linear_on_images(known):
        return None
    _relu_in_place(known)
    return _pool_before_relu(known)


def leaves(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of nested sequences and residual networks in order."""
    if _hooked(module):
        yield module
    elif type(module) is nn.Sequential:
        for child in module:
            yield from leaves(child)
    elif type(module) is ResNet:
        yield from (module.conv1, module.norm1, nn.ReLU())
        for stage in (module.stage1, module.stage2, module.stage3):
            yield from leaves(stage)
        yield from (nn.AdaptiveAvgPool2d(1), nn.Flatten(), module.head)
    else:
        yield module


def _fast_layer(layer: nn.Module) -> FastLayer | None:
    if _hooked(layer):
        return None
    if type(layer) is nn.Linear:
        return _Linear(layer)
    if type(layer) is nn.Conv2d and _zero_padded(layer):
        plain = (layer.stride, layer.padding) == ((1, 1), (0, 0))
        return _Convolution(layer) if plain else PaddedConvolution(layer)
    if type(layer) is nn.GroupNorm and layer.affine:
        return Normalization(layer)
    if type(layer) is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1)):
        return MeanPool()
    if type(layer) is Block:
        return _block(layer)
    if type(layer) is nn.ReLU:
        return _Relu()
    if type(layer) is nn.MaxPool2d and _plain_pool(layer):
        return _Pool(_side(layer.kernel_size))
    if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        return _Flatten()
    if type(layer) is nn.Dropout:
        return _Dropout(layer.p)
    return None


def _block(block: Block) -> FastLayer | None:
    parts = (block.conv1, block.norm1, nn.ReLU(), block.conv2, block.norm2)
    chain = [found for part in parts if (found := _fast_layer(part)) is not None]
    if len(chain) < len(parts):
        return None
    _relu_in_place(chain)
    return ResidualBlock(block, chain)


def _zero_padded(layer: nn.Conv2d) -> bool:
    by_number = not isinstance(layer.padding, str) and layer.padding_mode == "zeros"
    return by_number and layer.dilation == (1, 1) and layer.groups == 1


def _plain_pool(layer: nn.MaxPool2d) -> bool:
    same = _side(layer.kernel_size) == _side(layer.stride) > 0
    bare = (layer.padding, layer.dilation, layer.ceil_mode) == (0, 1, False)
    return same and bare and not layer.return_indices


def _side(size: int | tuple[int, ...]) -> int:
    """Return the side of a square window, 0 for any other."""
    if isinstance(size, int):
        return size
    return size[0] if len(set(size)) == 1 else 0


def _hooked(layer: nn.Module) -> bool:
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)
    return any(hooks) or hasattr(layer, "parametrizations")


def _linear_on_images(layers: list[FastLayer]) -> bool:
    """Tell whether a layer for images follows a linear one, which here takes only rows.

    Nor may a norm come first: it also takes rows, and only images are written out.
    """
    kinds = [type(layer) for layer in layers]
    first = kinds.index(_Linear) if _Linear in kinds else len(kinds)
    images = next((kind for kind in kinds if kind in _FOR_IMAGES), None)
    return images is Normalization or any(kind in _FOR_IMAGES for kind in kinds[first:])


def _relu_in_place(layers: list[FastLayer]) -> None:
    fresh = False
    for layer in layers:
        fresh = fresh or hasattr(layer, "weight")
        if isinstance(layer, _Relu):
            layer.in_place = fresh


def _pool_before_relu(layers: list[FastLayer]) -> list[FastLayer]:
    """Swap ReLU and the max-pooling after it: both give max(0, largest), with equal gradients."""
    swapped = list(layers)
    for place in range(len(swapped) - 1):
        if isinstance(swapped[place], _Relu) and isinstance(swapped[place + 1], _Pool):
            swapped[place], swapped[place + 1] = swapped[place + 1], swapped[place]
    return swapped
