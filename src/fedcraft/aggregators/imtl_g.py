"""IMTL-G: equal progress along every client's own direction, with weights that sum to one."""

from __future__ import annotations

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.weighting import Weighted
from fedcraft.linalg import rounding, unit_grams
from fedcraft.linalg.pseudo_inverse import eigen_solve

_NOTHING = 1e-12


class IMTLG(Weighted):
    """g = sum_i w_i g_i with <u_i, g> equal for all i and sum_i w_i = 1, u_i = g_i / ||g_i||

    (Liu et al., Towards impartial multi-task learning, ICLR 2021; in the form for any number of
    clients, w = v / sum v with v = G^+ d, d_i = ||g_i||, of arXiv:2406.16232). The direction is
    that of ConFIG with equal targets; only the length is another. Data sizes play no role: the
    point of the rule is that all clients count the same. Remembers nothing; cost O(m^2 d + m^3).

    The pseudo-inverse is that of the unit updates, as in ConFIG; for dependent updates TorchJD's
    G^+ weighs the clients' errors by their lengths instead. Where the weights would sum to zero or
    less, the formula gives an infinite step or one against every client: the step is then zero, as
    it is where clients contradict each other.
    """

    def weigh(self, gram: Tensor, cohort: Cohort) -> Tensor:
        kernel, inverse = unit_grams(gram)
        present = (inverse > 0).to(kernel)
        solution = eigen_solve(kernel, present, rounding(cohort.dtype))[0]
        found = inverse * solution
        total = found.sum()
        contradiction = torch.dot(present, solution) <= _NOTHING  # ||g||^2 of ConFIG
        if contradiction or total <= _NOTHING * found.abs().sum():
            return torch.zeros_like(found)
        return found / total
