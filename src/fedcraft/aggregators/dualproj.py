"""DualProj: the average, projected to where it hurts nobody."""

from __future__ import annotations

from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.dual_cone import nearest_without_conflict
from fedcraft.aggregators.weighting import Weighted


class DualProj(Weighted):
    """g = argmin_y ||y - a|| subject to <g_i, y> >= 0 for all i, with a = sum_i rho_i g_i.

    The projection of GEM (Lopez-Paz and Ranzato 2017, arXiv:1706.08840, eq. 11) with every client
    as a constraint and the data-weighted average in the place of the current task's gradient, as in
    TorchJD's DualProj. Where the average is free of conflicts, this is FedAvg. Remembers nothing;
    cost O(m^2 d + m^3).

    GEM's margin on the multipliers and TorchJD's ridge of 1e-4 on the Gram matrix are left out.
    """

    def weigh(self, gram: Tensor, cohort: Cohort) -> Tensor:
        return nearest_without_conflict(gram, cohort.weights.unsqueeze(0))[0]
