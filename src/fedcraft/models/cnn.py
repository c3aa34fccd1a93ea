"""The paper's convolutional network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedcraft.errors import InputError
from fedcraft.models.resnet import image_shape


def cnn(*, input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """Return two 5x5 convolutions of 64 with pooling, then linear layers of 384 and 192.

    Dropout (0.2, then 0.5) stands *before* its ReLU, as in the released code. For 3 x 32 x 32
    inputs and 10 classes: 797,962 parameters. Dropout draws from torch's global generator: train
    inside :func:`fedcraft.models.seeded`.
    """
    channels, *sides = image_shape(input_shape)
    height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
    if min(height, width) < 1:
        raise InputError(
            f"input_shape: expected images of at least 16 x 16, found {tuple(input_shape)}"
        )
    return nn.Sequential(
        nn.Conv2d(channels, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * height * width, 384),
        nn.Dropout(0.2),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.Dropout(0.5),
        nn.ReLU(),
        nn.Linear(192, classes),
    )
