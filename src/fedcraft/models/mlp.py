"""The paper's multi-layer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedcraft.errors import InputError


def mlp(
    *, input_shape: Sequence[int], classes: int, hidden: Sequence[int] = (200, 200)
) -> nn.Sequential:
    """Return in-200-200-classes with ReLU between, torch's default initialisation.

    Images are flattened. For 784 inputs and 62 classes: 209,662 parameters.
    """
    widths = [math.prod(input_shape), *hidden, classes]
    if min(widths) < 1:
        raise InputError(f"hidden must hold positive widths, but they are {tuple(hidden)}")
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
