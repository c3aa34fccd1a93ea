"""Server optimisers: the direction of a round -> the step that is subtracted from theta.

``OPTIMIZERS`` is the table of names; a new one adds its class, its test and one line here.
"""

from __future__ import annotations

from typing import Any

from fedcraft.registry import build
from fedcraft.server_optimizers.optimizer import ServerOptimizer

__all__ = ["OPTIMIZERS", "ServerOptimizer", "server_optimizer"]

OPTIMIZERS: dict[str, str] = {
    "adagrad": "fedcraft.server_optimizers.adaptive:Adagrad",
    "adam": "fedcraft.server_optimizers.adaptive:Adam",
    "momentum": "fedcraft.server_optimizers.momentum:Momentum",
    "muon": "fedcraft.server_optimizers.muon:Muon",
    "sgd": "fedcraft.server_optimizers.sgd:Sgd",
    "yogi": "fedcraft.server_optimizers.adaptive:Yogi",
}


def server_optimizer(name: str, lr: float = 1.0, **params: Any) -> ServerOptimizer:
    """Return a fresh server optimiser by its name in ``OPTIMIZERS``, or ``package.module:Class``.

    >>> import numpy as np
    >>> momentum = server_optimizer("momentum", lr=0.1, beta=0.5)
    >>> momentum.step(np.array([1.0])), momentum.step(np.array([1.0]))
    (array([0.1]), array([0.15]))
    """
    built: ServerOptimizer = build(
        "server_optimizer", ServerOptimizer, OPTIMIZERS, name, {"lr": lr, **params}
    )
    return built
