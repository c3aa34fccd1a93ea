"""Nash-MTL: the step on which all clients would agree as bargainers."""

from __future__ import annotations

from typing import Any

from fedcraft.aggregators.fairgrad import FairGrad


class NashMTL(FairGrad):
    """g = sum_i w_i g_i with w_i <g_i, g> = m rho_i: the Nash bargaining solution

    (Navon et al. 2022, arXiv:2202.01017: G w = 1 / w). FairGrad with alpha = 1; it
    maximises sum_i rho_i log <g_i, g> in a ball, and does not depend on the lengths of the updates.
    ||g|| = sqrt(m) in every layer. Remembers nothing; cost as FairGrad.

    The released code solves a sequence of convex approximations, reuses weights for several steps
    and limits ||g|| to 1; here the equation is solved in every round, and ``length`` sets ||g||.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(alpha=1.0, **options)
