"""The contract of every server optimiser."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedcraft.errors import InputError, NonFiniteError, StateError, require
from fedcraft.updates import RoundContext, float_tensor

State = dict[str, Any]
Direction = Tensor | npt.NDArray[np.floating]


class ServerOptimizer(ABC):
    """Turns a direction g_t into the step that theta_{t+1} = theta_t - step subtracts.

    A subclass implements ``displacement`` and keeps what it remembers in ``self.memory``, a
    dictionary of tensors and plain values that it *replaces* and never changes in place. This class
    checks directions, saves and restores, and leaves the state untouched when a step fails. Memory
    has the dtype and device of the directions, which must be float32 or float64: squares of halves
    overflow, or lose what is added to them.
    """

    def __init__(self, *, lr: float = 1.0) -> None:
        require(np.isfinite(lr) and lr > 0, "lr", "a positive number", lr)
        self.lr = float(lr)
        self.memory: State = {}
        self.context: RoundContext | None = None
        """The model, the round and the rates, while a round loop calls the optimiser."""

    @abstractmethod
    def displacement(self, direction: Tensor) -> Tensor:
        """Return the step for a checked direction."""

    def evaluated(self, theta: Tensor) -> Tensor:
        """Return the model to evaluate and save after a round: theta, unless overridden."""
        return theta

    def step(self, direction: Direction) -> Any:
        """Return the step to subtract from theta, in the kind and dtype of ``direction``.

        If the direction is not a finite flat vector of the dimension of earlier rounds, an error is
        raised and the state is as it was.
        """
        vector = _as_vector(direction)
        self._check_dimension(vector)
        remembered = self.memory
        try:
            step = self.displacement(vector)
        except BaseException:
            self.memory = remembered
            raise
        self.memory = {**self.memory, "dimension": len(vector)}
        return step.numpy() if isinstance(direction, np.ndarray) else step

    def state_dict(self) -> State:
        """Return what the optimiser remembers: tensors and plain values, safe to save."""
        return {**self.memory, "optimizer": type(self).__name__}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; the next step is the one the saved optimiser would take."""
        name, found = type(self).__name__, state.get("optimizer")
        if found != name:
            raise StateError(f"state: expected one of {name}, found one of {found}")
        self.memory = {key: value for key, value in state.items() if key != "optimizer"}

    def reset(self) -> None:
        """Forget every earlier round."""
        self.memory = {}

    def _recall(self, name: str, like: Tensor) -> Tensor:
        """Return a remembered vector, zero at first."""
        found = self.memory.get(name)
        return torch.zeros_like(like) if found is None else found.to(like)

    def _check_dimension(self, direction: Tensor) -> None:
        expected = self.memory.get("dimension")
        if expected is not None and expected != len(direction):
            raise InputError(
                f"direction: earlier rounds had {expected} coordinates, this one has "
                f"{len(direction)}; call reset() to start with another model"
            )


def _as_vector(direction: object) -> Tensor:
    vector = float_tensor("direction", direction)
    if vector.ndim != 1:
        raise InputError(f"direction: expected a flat vector, found shape {tuple(vector.shape)}")
    # A finite sum proves it at a tenth of the cost; an infinite one may be an overflow.
    if not bool(torch.isfinite(vector.sum())) and not bool(torch.isfinite(vector).all()):
        raise NonFiniteError("direction: expected finite numbers, found NaN or Inf")
    return vector
