"""UPGrad: every update is projected to where it hurts nobody, and the results are averaged."""

from __future__ import annotations

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.dual_cone import nearest_without_conflict
from fedcraft.aggregators.weighting import Weighted


class UPGrad(Weighted):
    """g = sum_i rho_i P(g_i) with P(x) = argmin_y ||y - x|| subject to <g_j, y> >= 0 for all j

    (Quinton and Rey 2024, arXiv:2406.16232). The step is free of conflicts, and every client
    has its part in it. Remembers nothing; cost O(m^2 d + m^4) at worst, with m problems of
    non-negative least squares by layer that share a factor of the Gram matrix.

    Data sizes rho replace the uniform 1/m. The authors' package (TorchJD) adds 1e-4 to the diagonal
    of the Gram matrix, scaled to trace one; here the projections are exact up to rounding.
    """

    def weigh(self, gram: Tensor, cohort: Cohort) -> Tensor:
        return nearest_without_conflict(gram, torch.diag(cohort.weights)).sum(0)
