"""Attacks of colluding clients that know what the honest ones send; all send the same vector."""

from __future__ import annotations

import math
from abc import abstractmethod
from statistics import NormalDist
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedcraft.attacks.base import Attack
from fedcraft.errors import require

Perturbation = Literal["std", "unit", "sign"]


class Collusion(Attack):
    """All hostile clients send one vector, made from the honest updates."""

    @abstractmethod
    def vector(self, honest: Tensor, hostile: int) -> Tensor:
        """Return the vector for ``honest`` updates (k, d) and this many hostile clients."""

    def updates(self, own: Tensor, honest: Tensor, draw: torch.Generator) -> Tensor:
        return self.vector(honest, len(own)).expand_as(own)


class SybilCopies(Attack):
    """All send the same flipped update, that of the first of them."""

    def updates(self, own: Tensor, honest: Tensor, draw: torch.Generator) -> Tensor:
        return (-own[0]).expand_as(own)


class InnerProduct(Collusion):
    """Send -epsilon times the honest mean (Xie, Koyejo and Gupta, UAI 2019)."""

    def __init__(self, *, epsilon: float = 0.5, **options: Any) -> None:
        super().__init__(**options)
        require(epsilon > 0, "epsilon", "a number above 0", epsilon)
        self.epsilon = epsilon

    def vector(self, honest: Tensor, hostile: int) -> Tensor:
        return -self.epsilon * honest.mean(0)


class Veto(InnerProduct):
    """Send minus the honest mean: a client that no step can serve together with the others."""

    def __init__(self, **options: Any) -> None:
        super().__init__(epsilon=1.0, **options)


class ALIE(Collusion):
    """A little is enough: mean - z std, coordinate by coordinate (Baruch et al., NeurIPS 2019).

    ``z`` is the paper's largest inconspicuous one for the round's m clients, f of them hostile:
    Phi(z) = (m - f - s) / (m - f) with s = floor(m / 2 + 1) - f, at least 0.
    """

    def __init__(self, *, z: float | None = None, **options: Any) -> None:
        super().__init__(**options)
        require(z is None or z >= 0, "z", "a number >= 0, or None", z)
        self.z = z

    def vector(self, honest: Tensor, hostile: int) -> Tensor:
        z = largest_z(len(honest), hostile) if self.z is None else self.z
        return honest.mean(0) - z * _std(honest)


class MinMax(Collusion):
    """mean + gamma p, as far as the farthest two honest clients are apart.

    gamma is the largest with max_i ||v - x_i|| <= max_ij ||x_i - x_j|| (Shejwalkar and Houmansadr,
    NDSS 2021). ``perturbation`` p is minus the honest clients' ``"std"``, minus the ``"unit"`` mean
    or minus the ``"sign"`` of the mean.
    """

    def __init__(self, *, perturbation: Perturbation = "std", **options: Any) -> None:
        super().__init__(**options)
        known = get_args(Perturbation)
        require(perturbation in known, "perturbation", f"one of {known}", perturbation)
        self.perturbation = perturbation

    def vector(self, honest: Tensor, hostile: int) -> Tensor:
        rows = honest.to(torch.float64)
        mean, towards = rows.mean(0), self._towards(rows)
        offsets = rows - mean
        square, along = float(towards @ towards), offsets @ towards
        if square == 0:
            return mean
        # ||v - x_i||^2 = gamma^2 ||p||^2 - 2 gamma <p, x_i - mean> + ||x_i - mean||^2
        gamma = self._largest(square, along, offsets.square().sum(1), torch.cdist(rows, rows))
        return mean + gamma * towards

    def _towards(self, rows: Tensor) -> Tensor:
        mean = rows.mean(0)
        if self.perturbation == "std":
            return -_std(rows)
        length = float(torch.linalg.vector_norm(mean))
        return -mean.sign() if self.perturbation == "sign" else -mean / max(length, 1e-300)

    def _largest(self, square: float, along: Tensor, squares: Tensor, distances: Tensor) -> float:
        limit = float(distances.max()) ** 2
        return float(_root(square, along, squares - limit).min().clamp(min=0))


class MinSum(MinMax):
    """Like min-max, with sums: sum_i ||v - x_i||^2 <= max_i sum_j ||x_i - x_j||^2."""

    def _largest(self, square: float, along: Tensor, squares: Tensor, distances: Tensor) -> float:
        limit = float(distances.square().sum(1).max())
        count = len(along)
        root = _root(count * square, along.sum(), squares.sum() - limit)
        return float(root.clamp(min=0))


def largest_z(honest: int, hostile: int) -> float:
    """Return z of ALIE for this many honest and hostile clients, 0 where none is inconspicuous."""
    needed = max(math.floor((honest + hostile) / 2 + 1) - hostile, 0)
    share = (honest - needed) / honest
    return max(NormalDist().inv_cdf(min(share, 0.999)), 0.0) if share > 0 else 0.0


def _root(a: float, b: Tensor, c: Tensor) -> Tensor:
    """Return the larger root of a x^2 - 2 b x + c."""
    return (b + (b.square() - a * c).clamp(min=0).sqrt()) / a


def _std(rows: Tensor) -> Tensor:
    return rows.std(0, correction=0)
