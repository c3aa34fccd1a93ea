"""The layer sizes of the paper's models, as CRAFT groups them."""

from __future__ import annotations

__all__ = ["MODELS", "resnet_layers"]


def resnet_layers(blocks: int, classes: int = 10) -> list[int]:
    """Sizes of a CIFAR ResNet's layers: every 3x3 convolution with its norm, then the head."""
    sizes, channels = [3 * 16 * 9 + 2 * 16], 16
    for width in (16, 32, 64):
        for _ in range(blocks):
            sizes += [channels * width * 9 + 2 * width, width * width * 9 + 2 * width]
            channels = width
    return [*sizes, 64 * classes + classes]


MODELS: dict[str, list[int]] = {
    "MLP": [784 * 200 + 200, 200 * 200 + 200, 200 * 62 + 62],
    "CNN": [
        3 * 64 * 25 + 64,
        64 * 64 * 25 + 64,
        1600 * 384 + 384,
        384 * 192 + 192,
        192 * 10 + 10,
    ],
    "ResNet-20": resnet_layers(3),
    "ResNet-110": resnet_layers(18),
}
