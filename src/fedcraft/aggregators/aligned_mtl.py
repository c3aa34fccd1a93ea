"""Aligned-MTL: the average of updates whose principal components have been made equally long."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.weighting import Weighted
from fedcraft.errors import require
from fedcraft.linalg import rounding

Balance = Literal["min", "median", "rmse"]


class AlignedMTL(Weighted):
    """g = J^T B rho with B = sigma V L^(-1/2) V^T for G = V L V^T

    (Senushkin et al. 2023, arXiv:2305.19000, algorithm 1). B makes all singular values of the
    updates equal to sigma, so that no direction dominates; the matrix is the nearest of that kind.
    Remembers nothing; cost O(m^2 d + m^3).

    * ``balance``: sigma^2 is the smallest (``"min"``, the paper), the ``"median"`` or the mean
      (``"rmse"``, the released code) of the eigenvalues. With ``"min"`` clients that nearly depend
      on each other make the step short: use ``length``.

    Data sizes rho are the paper's preferences. Eigenvalues that are rounding are left out, in the
    precision of the updates; the directions of dependent updates stay without weight.
    """

    def __init__(self, *, balance: Balance = "min", **options: Any) -> None:
        super().__init__(**options)
        require(balance in get_args(Balance), "balance", f"one of {get_args(Balance)}", balance)
        self.balance: Balance = balance

    def weigh(self, gram: Tensor, cohort: Cohort) -> Tensor:
        lost = 4 * cohort.size * torch.finfo(torch.float64).eps
        values, vectors = torch.linalg.eigh(gram)
        kept = values > max(rounding(cohort.dtype) ** 2, lost) * values[-1]
        if not bool(kept.any()):
            return torch.zeros_like(cohort.weights)
        values, vectors = values[kept], vectors[:, kept]
        square = {"min": values[0], "median": values.median(), "rmse": values.mean()}[self.balance]
        balance: Tensor = (vectors * (square / values).sqrt()) @ vectors.T
        return balance @ cohort.weights
