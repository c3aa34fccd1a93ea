"""The paper's multi-layer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedcraft.errors import require


def mlp(
    *, input_shape: Sequence[int], classes: int, hidden: Sequence[int] = (200, 200)
) -> nn.Sequential:
    """Return in-200-200-classes with ReLU between, torch's default initialisation.

    Images are flattened. For 784 inputs and 62 classes: 209,662 parameters.
    """
    fine = isinstance(hidden, list | tuple) and all(type(w) is int and w > 0 for w in hidden)
    require(fine, "hidden", "a list of widths of at least 1, such as [200, 200]", hidden)
    widths = [math.prod(input_shape), *hidden, classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
