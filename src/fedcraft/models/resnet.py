"""Residual networks for CIFAR (He et al. 2016, Section 4.2), with GroupNorm."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from fedcraft.errors import InputError


class Block(nn.Module):
    """Two 3x3 convolutions and their shortcut."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(1, fan_out)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(1, fan_out)
        self.stride = stride
        self.padding = (fan_out - fan_in) // 2

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self._around(x))

    def _around(self, x: Tensor) -> Tensor:
        """Option A: every second pixel, and zero channels on both sides. No parameters."""
        if self.stride == 1 and self.padding == 0:
            return x
        thinned = x[:, :, :: self.stride, :: self.stride]
        return F.pad(thinned, (0, 0, 0, 0, self.padding, self.padding))


class ResNet(nn.Module):
    """A stem, three stages of widths 16/32/64, the mean over the image, and a linear head.

    Every norm is GroupNorm with one group over all channels. Convolution and linear weights start
    Kaiming-normal.
    """

    def __init__(self, channels: int, classes: int, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(1, 16)
        self.stage1 = _stage(16, 16, blocks, stride=1)
        self.stage2 = _stage(16, 32, blocks, stride=2)
        self.stage3 = _stage(32, 64, blocks, stride=2)
        self.head = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        features: Tensor = self.stage3(self.stage2(self.stage1(x)))
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits


def resnet(*, input_shape: Sequence[int], classes: int, depth: int) -> ResNet:
    """Return ResNet-``depth``, depth = 6 n + 2 with n blocks per stage.

    For 3 channels and 10 classes: 269,722 parameters at depth 20, 853,018 at 56, 1,727,962 at 110.
    """
    if depth < 8 or depth % 6 != 2:
        raise InputError(f"depth must be 6 n + 2 with n >= 1 (20, 56, 110), but it is {depth}")
    return ResNet(image_shape(input_shape)[0], classes, (depth - 2) // 6)


resnet20, resnet56, resnet110 = (partial(resnet, depth=depth) for depth in (20, 56, 110))


def image_shape(shape: Sequence[int]) -> Sequence[int]:
    """Return the shape of one input, which must be an image's."""
    if len(shape) != 3:
        raise InputError(
            f"input_shape: expected images, (channels, height, width), found {tuple(shape)}"
        )
    return shape


def _stage(fan_in: int, fan_out: int, blocks: int, stride: int) -> nn.Sequential:
    first = Block(fan_in, fan_out, stride)
    return nn.Sequential(first, *(Block(fan_out, fan_out, 1) for _ in range(blocks - 1)))
