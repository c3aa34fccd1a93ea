"""The loss and accuracy of every client on one split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scores:
    """One split, evaluated: mean loss and accuracy of every client that has samples in it."""

    clients: NDArray[np.int64]
    loss: Floats
    accuracy: Floats
    samples: NDArray[np.int64]
