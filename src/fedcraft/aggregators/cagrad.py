"""CAGrad: near the average, the step that is best for the client it serves worst."""

from __future__ import annotations

from typing import Any

import torch
from scipy.optimize import brentq
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.weighting import Weighted
from fedcraft.errors import require
from fedcraft.linalg.minnorm import min_norm_weights

_STATIONARY = 1e-6  # ||g_w|| beside the longest update


class CAGrad(Weighted):
    """g = argmax_y min_i <g_i, y> subject to ||y - a|| <= c ||a|| with a = sum_i rho_i g_i

    (Liu et al. 2021, arXiv:2110.14048, algorithm 1). Its dual, with g_w = sum_i w_i g_i, is

        min over the simplex of  <g_w, a> + c ||a|| ||g_w||,   g = a + c ||a|| g_w / ||g_w||.

    c = 0 is FedAvg; large c tends to MGDA; from c = 1 on the step is free of conflicts. Remembers
    nothing; cost O(m^2 d + k m^3) with k about 10 problems of least norm by layer.

    * ``c``: the radius.

    Solved exactly instead of with a general solver: ||x|| = min_t (||x||^2 / t + t) / 2 turns the
    dual into the point of least norm in the hull of the g_i + t / (c ||a||) a, and a search for t.
    Data sizes replace the uniform 1/m. The released code can divide by 1 + c or 1 + c^2; not done
    here. Zero updates are left out of the hull, or g_w would vanish. g = 0 where g_w vanishes (a
    Pareto-stationary round), as in TorchJD.
    """

    def __init__(self, *, c: float = 0.5, **options: Any) -> None:
        super().__init__(**options)
        require(c >= 0, "c", "a number >= 0", c)
        self.c = c

    def weigh(self, gram: Tensor, cohort: Cohort) -> Tensor:
        shares = cohort.weights
        rows = torch.nonzero(gram.diagonal() > 0).flatten()
        if len(rows) == 0 or self.c == 0:
            return shares
        gram = gram / gram.diagonal().max()
        average = gram @ shares
        square = float((shares @ average).clamp(min=0))
        radius = self.c * square**0.5
        if radius <= _STATIONARY * self.c:
            return shares
        found = _least(gram[rows][:, rows], average[rows], square, radius)
        length = float((found @ gram[rows][:, rows] @ found).clamp(min=0).sqrt())
        if length <= _STATIONARY:
            return torch.zeros_like(shares)
        weights = shares.clone()
        weights[rows] += radius / length * found
        return weights


def _least(gram: Tensor, average: Tensor, square: float, radius: float) -> Tensor:
    """Return w that minimises <g_w, a> + r ||g_w||; the longest update has length one."""

    def nearest(length: float) -> Tensor:
        """argmin_w ||g_w + (t / r) a||^2."""
        tilt = length / radius
        return min_norm_weights(gram + tilt * (average.unsqueeze(-1) + average) + tilt**2 * square)

    def slope(length: float) -> float:
        """The sign of the derivative by t of a convex function."""
        found = nearest(length)
        return length - float((found @ gram @ found).clamp(min=0).sqrt())

    if slope(_STATIONARY) >= 0:
        return nearest(0.0)
    return nearest(float(brentq(slope, _STATIONARY, 1 + _STATIONARY, xtol=1e-12, rtol=1e-12)))
