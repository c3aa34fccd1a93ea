"""FedGH: both updates of every conflicting pair are projected off each other."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.visits import by_id
from fedcraft.aggregators.weighting import Weighted


class FedGH(Weighted):
    """g = sum_i rho_i p_i; p_i starts as g_i, and for every pair (i, j) with <p_i, p_j> < 0

    p_i <- p_i - <p_i, p_j> / ||p_j||^2 p_j   and   p_j <- p_j - <p_j, p_i> / ||p_i||^2 p_i,

    both with the p_i and p_j before the pair (Zhang et al. 2023, arXiv:2309.06692, gradient
    harmonization). In contrast to PCGrad, updates are projected off projected ones. Remembers
    nothing; cost O(m^2 d + m^3).

    The authors' text and code were not at hand. A summary of the paper has p_i <- p_i -
    <p_i, q_j> / ||q_j||^2 q_j with copies q and data weights, but does not say when the copies are
    made: before each pair, as here, or once. Public implementations do either; for two clients
    both are the same. Pairs come in the order of the client ids, so that the order of the rows
    does not matter.
    Where two updates are opposite, both become zero, and are left alone from then on.
    """

    def weights(self, grams: Tensor, cohort: Cohort) -> Tensor:
        return cohort.weights @ _harmonised(grams, by_id(cohort.client_ids))


def _harmonised(grams: Tensor, order: list[int]) -> Tensor:
    """Return the coefficients of all p_i on the updates, (Q, m, m)."""
    pieces = torch.eye(len(order), dtype=grams.dtype).repeat(len(grams), 1, 1)
    products = grams.clone()  # <p_i, g_j>
    squares = grams.diagonal(dim1=1, dim2=2)
    gone = torch.finfo(grams.dtype).eps * squares  # what is left of a square is rounding
    for i, j in combinations(order, 2):
        along = (pieces[:, i] * products[:, j]).sum(-1)
        pair = [i, j]
        lengths = (pieces[:, pair] * products[:, pair]).sum(-1)
        usable = (lengths > gone[:, pair]).all(-1)
        conflict = usable & (along < 0)
        if not bool(conflict.any()):
            continue
        share = torch.where(conflict.unsqueeze(-1), along.unsqueeze(-1) / lengths.flip(-1), 0)
        share = share.unsqueeze(-1)
        pieces[:, pair] = pieces[:, pair] - share * pieces[:, pair].flip(1)
        products[:, pair] = products[:, pair] - share * products[:, pair].flip(1)
    return pieces
