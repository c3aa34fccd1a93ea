"""A federation in a few numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcraft.config.build import build_federation
from fedcraft.config.schema import Config

_MOST = 0.9


def describe_split(config: Config) -> dict[str, Any]:
    """Return how the data of ``config`` are distributed over its clients."""
    federation = build_federation(config)
    train = federation.sizes("train")
    counts = federation.label_counts()
    shares = -np.sort(-counts, axis=1) / counts.sum(axis=1, keepdims=True)
    needed = (shares.cumsum(axis=1) < _MOST).sum(axis=1) + 1
    return {
        "samples": len(federation.dataset),
        "classes": federation.dataset.classes,
        "clients": len(federation),
        "training samples per client (least, median, most)": [
            int(train.min()),
            float(np.median(train)),
            int(train.max()),
        ],
        "test samples": int(federation.sizes("test").sum()),
        "validation samples": int(federation.sizes("validation").sum()),
        f"labels that make up {_MOST:.0%} of a client (median)": float(np.median(needed)),
        "samples moved to keep the minimum size": federation.moved,
        "split hash": federation.split_hash,
    }
