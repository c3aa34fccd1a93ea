"""Adaptive server optimisers (Reddi et al. 2021, algorithm 2): FedAdaGrad, FedAdam, FedYogi.

m <- beta1 m + (1 - beta1) g_t, v from g_t^2 as each class says, and coordinate by coordinate

    theta <- theta - lr m / (sqrt(v) + tau)

with tau outside the root and m = v = 0 at first (the theory asks for v >= tau^2; the authors' runs
start at 0). Directions are as small as eta_l, so tau = 1e-3 matters, and a tiny tau makes the first
steps +-lr in every coordinate. tau = 0 is refused: a coordinate that never moved would be 0 / 0.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from fedcraft.errors import require
from fedcraft.server_optimizers.optimizer import ServerOptimizer

BiasCorrection = Literal["none", "keras", "flwr"]


class _Adaptive(ServerOptimizer):
    """What the three share: two moments of the direction, both remembered (2 d numbers)."""

    def __init__(self, *, lr: float, beta1: float, tau: float) -> None:
        super().__init__(lr=lr)
        require(0 <= beta1 < 1, "beta1", "a number in [0, 1)", beta1)
        require(tau > 0, "tau", "a positive number", tau)
        self.beta1, self.tau = beta1, tau

    @abstractmethod
    def _second(self, old: Tensor, square: Tensor) -> Tensor:
        """Return v after a direction with this square."""

    def _correction(self, count: int) -> float:
        """Return the factor on the rate in the ``count``-th round, counted from 1."""
        return 1.0

    def displacement(self, direction: Tensor) -> Tensor:
        count = self.memory.get("count", 0) + 1
        first = self.beta1 * self._recall("first", direction) + (1 - self.beta1) * direction
        second = self._second(self._recall("second", direction), direction.square())
        self.memory = {"count": count, "first": first, "second": second}
        return self.lr * self._correction(count) * first / (second.sqrt() + self.tau)


class Adagrad(_Adaptive):
    """v <- v + g_t^2, and m = g_t (beta1 = 0): FedAdaGrad."""

    def __init__(self, *, lr: float = 1.0, beta1: float = 0.0, tau: float = 1e-3) -> None:
        super().__init__(lr=lr, beta1=beta1, tau=tau)

    def _second(self, old: Tensor, square: Tensor) -> Tensor:
        return old + square


class Adam(_Adaptive):
    """v <- beta2 v + (1 - beta2) g_t^2: FedAdam.

    ``bias_correction``: ``"none"`` is the paper's algorithm and the default; ``"keras"`` multiplies
    the rate by sqrt(1 - beta2^r) / (1 - beta1^r), r = 1, 2, ..., as the optimiser in the authors'
    experiments does; ``"flwr"`` (Flower 1.41) the same with r from 2.
    """

    def __init__(
        self,
        *,
        lr: float = 1.0,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        bias_correction: BiasCorrection = "none",
    ) -> None:
        super().__init__(lr=lr, beta1=beta1, tau=tau)
        kinds = ("none", "keras", "flwr")
        require(0 <= beta2 < 1, "beta2", "a number in [0, 1)", beta2)
        require(bias_correction in kinds, "bias_correction", f"one of {kinds}", bias_correction)
        self.beta2 = beta2
        self.bias_correction: BiasCorrection = bias_correction

    def _second(self, old: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * old + (1 - self.beta2) * square

    def _correction(self, count: int) -> float:
        if self.bias_correction == "none":
            return 1.0
        power = count + 1 if self.bias_correction == "flwr" else count
        corrected: float = (1 - self.beta2**power) ** 0.5 / (1 - self.beta1**power)
        return corrected


class Yogi(_Adaptive):
    """v <- v - (1 - beta2) g_t^2 sign(v - g_t^2): FedYogi; v grows and shrinks at the same pace."""

    def __init__(
        self, *, lr: float = 1.0, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
    ) -> None:
        super().__init__(lr=lr, beta1=beta1, tau=tau)
        require(0 <= beta2 < 1, "beta2", "a number in [0, 1)", beta2)
        self.beta2 = beta2

    def _second(self, old: Tensor, square: Tensor) -> Tensor:
        return old - (1 - self.beta2) * square * torch.sign(old - square)
