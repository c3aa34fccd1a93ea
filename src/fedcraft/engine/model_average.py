"""The average of the iterates theta_1, theta_2, ...: often a better model than the last of them.

The last iterate of a run with few clients a round carries the noise of its last rounds; an average
over the last tenth of the rounds has lost most of it, at no cost to training, which never sees it.
Iterate n enters as mean <- mean + (theta_n - mean) / span(n) with

* ``mean``: span(n) = n, all iterates alike (AFL's output model);
* ``ema``: span(n) = (1 - beta^n) / (1 - beta), an exponential average with its start corrected;
* ``tail``: span(n) = (n + gamma) / (gamma + 1), polynomial-decay averaging (Shamir and Zhang 2013):
  a window that follows the horizon, about the last n / (gamma + 1) rounds after n of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

AverageKind = Literal["mean", "ema", "tail"]
_BETA = 0.98
_GAMMA = 8


class ModelAverage:
    """A running average.

    >>> import torch
    >>> average = ModelAverage("mean")
    >>> average.update(torch.tensor([1.0])), average.update(torch.tensor([3.0]))
    (tensor([1.]), tensor([2.]))
    """

    def __init__(self, kind: AverageKind) -> None:
        self.kind = kind
        self.count = 0
        self.mean: Tensor | None = None

    def update(self, theta: Tensor) -> Tensor:
        """Add theta to the average and return it."""
        self.count += 1
        if self.mean is None:
            self.mean = theta.clone()
        else:
            self.mean = self.mean + (theta - self.mean) / self._span()
        return self.mean

    def shift_last(self, change: Tensor) -> None:
        """Count the last iterate as if it had been theta + ``change``."""
        if self.mean is not None:
            self.mean = self.mean + change / self._span()

    def _span(self) -> float:
        if self.kind == "ema":
            return float(1 - _BETA**self.count) / (1 - _BETA)
        return (self.count + _GAMMA) / (_GAMMA + 1) if self.kind == "tail" else self.count

    def state_dict(self) -> dict[str, Any]:
        """Return the average and the number of iterates in it."""
        return {"count": self.count, "mean": self.mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved average."""
        self.count, self.mean = int(state["count"]), state["mean"]
