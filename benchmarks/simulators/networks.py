"""The paper's two networks in plain torch, for all contestants but fedcraft."""

from __future__ import annotations

from torch import nn

__all__ = ["network"]


def network(name: str) -> nn.Sequential:
    """Return the MLP for FEMNIST or the CNN for CIFAR-10."""
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(),
            nn.Linear(200, 62),
        )  # fmt: skip
    return nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1600, 384), nn.Dropout(0.2), nn.ReLU(),
        nn.Linear(384, 192), nn.Dropout(0.5), nn.ReLU(), nn.Linear(192, 10),
    )  # fmt: skip
