"""Logistic regression by client: a problem whose constants are known, not estimated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expit

from fedcraft.errors import InputError
from fedcraft.theory.problem import Vector

_STEEPEST = 3 * math.sqrt(3) / 8  # max |r'(w)| of r(w) = w^2 / (1 + w^2), at w = 1/sqrt(3)
_CURVIEST = 2.0  # max |r''(w)|, at w = 0; the least is -1/2, so r is not convex


@dataclass(frozen=True)
class LogisticProblem:
    """f_i(theta) = mean_j log(1 + exp(-z_j . theta)) + lambda sum_k theta_k^2 / (1 + theta_k^2).

    ``samples[i]`` (n_i, d) holds z_j = y_j x_j with y_j = +-1. With lambda = ``curvature`` = 0 the
    problem is convex, else not. Both terms have bounded gradients, so G_f holds everywhere (unlike
    with a square penalty), and both are >= 0, so F* = 0. With s(.) the largest singular
    value::

        L   = max_i s(Z_i)^2 / (4 n_i) + 2 lambda
        L_q = max_i s(Z_i) s(Z_i^q) / (4 n_i) + 2 lambda
        G_f = max_i min(mean_j ||z_j||, s(Z_i) / sqrt(n_i)) + lambda sqrt(d) 3 sqrt(3) / 8
    """

    samples: tuple[Vector, ...]
    curvature: float = 0.0

    def __post_init__(self) -> None:
        if not self.samples or any(z.ndim != 2 or len(z) == 0 for z in self.samples):
            raise InputError("samples: expected one non-empty (n_i, d) array for each client")
        widths = sorted({z.shape[1] for z in self.samples})
        if len(widths) != 1:
            raise InputError(f"samples: expected the same d for every client, found {widths}")
        if not self.curvature >= 0:
            raise InputError(f"curvature: expected a number >= 0, found {self.curvature!r}")

    @property
    def dimension(self) -> int:
        return int(self.samples[0].shape[1])

    @cached_property
    def weights(self) -> Vector:
        sizes = np.array([len(z) for z in self.samples], dtype=np.float64)
        return np.asarray(sizes / sizes.sum())

    @cached_property
    def smoothness(self) -> float:
        return self.block_smoothness(slice(0, self.dimension))

    @cached_property
    def gradient_bound(self) -> float:
        lengths = [float(np.linalg.norm(z, axis=1).mean()) for z in self.samples]
        spectra = [_top(z) / math.sqrt(len(z)) for z in self.samples]
        penalty = self.curvature * math.sqrt(self.dimension) * _STEEPEST
        return max(map(min, lengths, spectra)) + penalty

    @property
    def lower_bound(self) -> float:
        return 0.0

    def value(self, client: int, theta: Vector) -> float:
        loss = np.logaddexp(0.0, -self.samples[client] @ theta).mean()
        squares = theta**2
        return float(loss + self.curvature * (squares / (1 + squares)).sum())

    def gradient(self, client: int, theta: Vector) -> Vector:
        z = self.samples[client]
        slope = -(expit(-z @ theta) @ z) / len(z)
        return np.asarray(slope + self.curvature * 2 * theta / (1 + theta**2) ** 2)

    def block_smoothness(self, block: slice) -> float:
        curves = [_top(z) * _top(z[:, block]) / (4 * len(z)) for z in self.samples]
        return max(curves) + _CURVIEST * self.curvature


def random_logistic(
    rng: np.random.Generator,
    sizes: Sequence[int],
    dimension: int,
    *,
    heterogeneity: float = 1.0,
    noise: float = 0.1,
    curvature: float = 0.0,
) -> LogisticProblem:
    """Draw clients that differ in features, labels and size.

    Client i has n_i = ``sizes[i]`` points around its own centre; its labels follow a shared
    separator and a shared offset, each plus ``heterogeneity`` times the client's own, and are
    flipped with probability ``noise``. With heterogeneity = noise = 0 one separator fits all
    clients.
    """
    shared = rng.standard_normal(dimension)
    clients = []
    for size in sizes:
        centre, own = heterogeneity * rng.standard_normal((2, dimension)) / math.sqrt(dimension)
        points = centre + rng.standard_normal((size, dimension))
        separator = shared + math.sqrt(dimension) * own
        skew = heterogeneity * math.sqrt(dimension) * rng.standard_normal()
        labels = np.where(points @ separator + skew >= 0, 1.0, -1.0)
        labels *= np.where(rng.random(size) < noise, -1.0, 1.0)
        clients.append(labels[:, None] * points)
    return LogisticProblem(tuple(clients), curvature)


def _top(matrix: Vector) -> float:
    return float(np.linalg.norm(matrix, 2))
