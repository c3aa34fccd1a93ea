"""Convolutions by the fastest exact route on this CPU, chosen by shape alone.

oneDNN multiplies directly; NNPACK goes through a Fourier transform, which for 5 x 5 kernels on
small images takes less than half the arithmetic and, with fewer terms per sum, loses fewer bits.
torch offers NNPACK's forward pass only, so the gradients are written as forward passes:

    dW = the input (channels as batch) convolved with the output's gradient as a kernel,
    dX = the padded gradient convolved with the flipped kernel.

The choice never looks at a clock: the same shapes take the same route, hence give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import conv1d, conv2d

_TILE = 16  # side of NNPACK's Fourier tile
_LEAST_CHANNELS = 16  # below this the transforms cost more than they save
_LEAST_KERNEL = 5
_LEAST_BATCH = 8


def fourier(inputs: Tensor, weight: Tensor) -> bool:
    """Tell whether a valid, stride-1 convolution of these shapes takes the Fourier route."""
    count, channels, height, width = inputs.shape
    kernel = min(weight.shape[2:])
    return bool(
        kernel >= _LEAST_KERNEL
        and channels >= _LEAST_CHANNELS
        and count >= _LEAST_BATCH
        and max(height, width) <= _TILE
        and inputs.dtype == torch.float32
        and torch._nnpack_available()
    )


def ordered(images: Tensor, by_fourier: bool) -> Tensor:
    """Return images in the memory order of their route: oneDNN likes channels last."""
    order = torch.contiguous_format if by_fourier else torch.channels_last
    return images.contiguous(memory_format=order)


def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the valid convolution; contiguous by the Fourier route, else as oneDNN gives it."""
    if fourier(inputs, weight):
        return torch._nnpack_spatial_convolution(inputs.contiguous(), weight, bias, [0, 0])
    return conv2d(inputs, weight, bias)


def weight_gradient(inputs: Tensor, weight: Tensor, gradient: Tensor) -> Tensor:
    """Return dW[o, i] = sum_n x[n, i] * g[n, o]."""
    if fourier(inputs, weight):
        images, kernels = (t.transpose(0, 1).contiguous() for t in (inputs, gradient))
        return torch._nnpack_spatial_convolution(images, kernels, None, [0, 0]).transpose(0, 1)
    return backward(inputs, weight, gradient, [False, True, False])[1]


def input_gradient(inputs: Tensor, weight: Tensor, gradient: Tensor) -> Tensor:
    """Return dX[n, i] = sum_o g[n, o] * flipped w[o, i], over the whole border.

    One tile gives an image of at most 17 - k pixels a side. If the input is two pixels larger
    (32 x 32 images in the paper's network), its outermost ring is computed directly.
    """
    height, width = inputs.shape[2:]
    kernel = weight.shape[2]
    if not fourier(inputs, weight) or height != width or kernel != weight.shape[3]:
        return backward(inputs, weight, gradient, [True, False, False])[0]
    excess = height - (_TILE + 1 - kernel)
    flipped = weight.flip(2, 3).transpose(0, 1).contiguous()
    if excess <= 0:
        border = [kernel - 1, kernel - 1]
        return torch._nnpack_spatial_convolution(gradient.contiguous(), flipped, None, border)
    if excess != 2:
        return backward(inputs, weight, gradient, [True, False, False])[0]
    return _inner_and_ring(gradient.contiguous(), weight, flipped)


def _inner_and_ring(gradient: Tensor, weight: Tensor, flipped: Tensor) -> Tensor:
    kernel = weight.shape[2]
    inner = torch._nnpack_spatial_convolution(gradient, flipped, None, [kernel - 2, kernel - 2])
    count, channels, height, width = inner.shape
    # Channels last in memory, like the layers below.
    whole = inner.new_empty(count, height + 2, width + 2, channels).permute(0, 3, 1, 2)
    whole[:, :, 1:-1, 1:-1] = inner
    for edge, line in zip(_edges(whole), _ring(gradient, weight), strict=True):
        edge.copy_(line)
    return whole


def _ring(gradient: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Return the four outermost lines of dX, each (n, i, side).

    Only one line of the gradient and one line of the kernel reach each of them, so each is a full
    one-dimensional convolution: four groups of one call.
    """
    lines, kernels = (torch.cat(_edges(images), 1) for images in (gradient, weight))
    outputs, inputs, kernel = weight.shape[:3]
    flipped = kernels.view(outputs, 4, inputs, kernel).flip(3).permute(1, 2, 0, 3)
    found = conv1d(lines, flipped.reshape(-1, outputs, kernel), padding=kernel - 1, groups=4)
    return found.chunk(4, 1)


def _edges(images: Tensor) -> list[Tensor]:
    """The lines at the top, the bottom, the left and the right."""
    return [images[:, :, 0], images[:, :, -1], images[..., 0], images[..., -1]]


def backward(
    inputs: Tensor,
    weight: Tensor,
    gradient: Tensor,
    wanted: list[bool],
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients at inputs, weight and bias that are ``wanted``, by oneDNN."""
    shape = [weight.shape[0]], stride, padding, [1, 1], False, [0, 0], 1
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        gradient, inputs, weight, *shape, wanted
    )
    return found
