"""FairGrad: the step whose gains are alpha-fair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.weighting import Weighted
from fedcraft.errors import require
from fedcraft.linalg import unit_grams

_RIDGE = 1e-8  # on unit updates: opposite clients have no alpha-fair step
_TOLERANCE = 1e-13
_STEPS = 100
_SHORTEST = 1e-12

Array = npt.NDArray[np.float64]


class FairGrad(Weighted):
    """g = sum_i w_i g_i with w_i = m rho_i u_i^-alpha, u_i = <g_i, g>

    (Ban and Ji 2024, arXiv:2402.15638, eq. 4: G w = w^(-1/alpha)). In its ball, g maximises
    sum_i rho_i u_i^(1 - alpha) / (1 - alpha), so that all u_i > 0: the step is free of conflicts.
    Remembers nothing; cost O(m^2 d + k m^3) with k about 20 Newton steps by layer.

    * ``alpha``: 0 is m times FedAvg, 1 is ``nash_mtl`` (proportional fairness), large values tend
      to equal gains.

    g(s X) = s^((1 - alpha) / (1 + alpha)) g(X): for alpha > 1 shorter updates make a *longer* step.
    The method ``fairgrad`` therefore has the length of FedAvg's step.

    w is the only minimum of a convex function, found by Newton's method; the released code and
    TorchJD minimise ||G w - w^(-1/alpha)||^2 with scipy's least squares, from w = 1/m. The
    released code then multiplies g by m and cuts its length to 1; here both are left out. Data
    sizes enter as m rho_i, so that equal ones are the paper's rule. Zero updates get no weight. A
    ridge of 1e-8 on unit updates bounds w where clients contradict each other.
    """

    def __init__(self, *, alpha: float = 2.0, **options: Any) -> None:
        super().__init__(**options)
        require(0 <= alpha < float("inf"), "alpha", "a number >= 0", alpha)
        self.alpha = alpha

    def weigh(self, gram: Tensor, cohort: Cohort) -> Tensor:
        """With v_i = ||g_i|| w_i and unit updates: K v = (v / q)^(-1/alpha)."""
        shares = cohort.size * cohort.weights
        if self.alpha == 0:
            return shares
        kernel, inverse = unit_grams(gram)
        weights = torch.zeros_like(shares)
        rows = torch.nonzero((inverse > 0) & (shares > 0)).flatten()
        if len(rows) == 0:
            return weights
        block = kernel[rows][:, rows] + _RIDGE * torch.eye(len(rows), dtype=kernel.dtype)
        amounts = shares[rows] * inverse[rows] ** (self.alpha - 1)
        size = amounts.mean()  # v is homogeneous in q, of degree 1 / (1 + alpha)
        found = fair_point(block.numpy(), (amounts / size).numpy(), self.alpha)
        scale = size ** (1 / (1 + self.alpha))
        weights[rows] = scale * inverse[rows] * torch.from_numpy(found)
        return weights


def fair_point(kernel: Array, amounts: Array, alpha: float) -> Array:
    """Return v > 0 with K v = (v / q)^(-1/alpha), for positive definite K.

    v minimises 1/2 v^T K v - sum_i q_i^(1/alpha) p(v_i) with p' = v^(-1/alpha), which is convex: a
    Newton method with a line search that stays positive.
    """
    roots, power = amounts ** (1 / alpha), 1 - 1 / alpha

    def value(point: Array) -> float:
        gains = np.log(point) if power == 0 else point**power / power
        return float(point @ kernel @ point / 2 - roots @ gains)

    point = amounts ** (1 / (1 + alpha))  # exact where no two clients have anything in common
    for _ in range(_STEPS):
        slope = kernel @ point - roots * point ** (-1 / alpha)
        curvature = roots * point ** (-1 / alpha - 1) / alpha
        # In units of v, so that weights of very different sizes do not spoil the condition.
        scaled = kernel * np.outer(point, point) + np.diag(curvature * point**2)
        step = point * np.linalg.solve(scaled, point * slope)
        drop = float(slope @ step)
        if not drop > _TOLERANCE**2 * float(roots @ point**power):
            break
        new = _descend(point, step, drop, value)
        if new is point:
            break
        point = new
    return point


def _descend(point: Array, step: Array, drop: float, value: Callable[[Array], float]) -> Array:
    """Go along the step as far as the value falls; near the minimum its rounding does not count."""
    fraction = min(1.0, 0.99 / max(float((step / point).max()), 1e-300))
    start = value(point)
    slack = 1e-14 * abs(start)
    while fraction > _SHORTEST:
        new: Array = point - fraction * step
        if value(new) <= start - 1e-4 * fraction * drop + slack:
            return new
        fraction /= 2
    return point
