"""AdaFed: every client's loss falls at a rate that its loss sets."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.weighting import Weighted
from fedcraft.errors import require
from fedcraft.linalg import rounding, unit_grams
from fedcraft.linalg.pseudo_inverse import eigen_solve

_NOTHING = 1e-12  # of what unit updates can give: they contradict each other


class AdaFed(Weighted):
    """g = J^T G^-1 b / (b^T G^-1 b) with b_i = F_i^gamma: <g_i, g> is proportional to F_i^gamma

    (Hamidi and Yang 2024, arXiv:2401.04993). Public implementations, one of which names the
    paper's eqs. 5, 6 and 12 to 14, orthogonalise,
    h_i = (g_i - sum_{j<i} s_ij h_j) / (F_i^gamma - sum_{j<i} s_ij), s_ij = <g_i, h_j> / ||h_j||^2,
    and take the shortest vector g in the hull of the h_i. For it <h_i, g> = ||g||^2, from which
    <g_i, g> = F_i^gamma ||g||^2 follows: the formula above is the same vector, without an order of
    the clients and without denominators that can vanish. Data sizes play no role. Remembers
    nothing; cost O(m^2 d + m^3).

    * ``gamma``: 0 asks for equal <g_i, g>; the larger, the more a large loss counts.

    For dependent updates, where orthogonalising divides by zero, the equations hold in the sense of
    least squares on unit updates. Clients that contradict each other give zero. Zero updates and
    clients with loss zero ask for nothing.
    One short update suffices to make the step short: that is the formula. The method ``adafed``
    therefore has the length of FedAvg's step. One public benchmark gives all updates length one
    before it orthogonalises; here, as in the others, their lengths count. The authors' text and
    code were not at hand.
    """

    needs = frozenset({"losses"})

    def __init__(self, *, gamma: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        require(gamma >= 0, "gamma", "a number >= 0", gamma)
        self.gamma = gamma

    def weigh(self, gram: Tensor, cohort: Cohort) -> Tensor:
        """K^+ r / (r^T K^+ r) on unit updates, with r_i = b_i / ||g_i|| scaled to at most one."""
        kernel, inverse = unit_grams(gram)
        rates = cast(Tensor, cohort.losses).abs() ** self.gamma * inverse
        size = rates.max()
        if size <= 0:
            return torch.zeros_like(rates)
        found = eigen_solve(kernel, rates / size, rounding(cohort.dtype))[0]
        along = torch.dot(rates / size, found)
        return found / (along * size) * inverse if along > _NOTHING else torch.zeros_like(rates)
