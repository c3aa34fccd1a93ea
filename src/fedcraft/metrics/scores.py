"""The loss and accuracy of every client on one split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcraft.metrics.fairness import summarise

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scores:
    """One split, evaluated: mean loss and accuracy of every client that has samples in it."""

    clients: NDArray[np.int64]
    loss: Floats
    accuracy: Floats
    samples: NDArray[np.int64]


def summary(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Return the numbers of an evaluation: fairness over the clients, losses over the samples."""
    found: dict[str, float] = {}
    for split, score in scores.items():
        found[f"{split}_loss"] = float(np.average(score.loss, weights=score.samples))
    if "test" in scores:
        found |= summarise(scores["test"].accuracy, scores["test"].samples)
    if "validation" in scores:
        found["validation_mean"] = float(scores["validation"].accuracy.mean())
    return found
