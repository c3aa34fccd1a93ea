"""The lengths of a direction that every rule offers.

The default length is that of the rule. For CRAFT and ConFIG it depends only on angles, so the
server rate alone determines the step and must be tuned. With a length from the clients' updates,
``server_lr = 1`` means the same as in FedAvg, and steps shrink automatically with the client rate
and near the optimum. With a^q = sum_i w_i g_i^q, every layer g^q is scaled to

* ``unit``: 1.
* ``average``: ||a^q||, the length of FedAvg's step.
* ``clipped_average``: ||sum_i w_i c_i g_i^q|| with c_i = min(1, 3 median_j ||g_j^q|| / ||g_i^q||).
  Otherwise one client that diverges or lies could determine the length of a^q.
* ``progress``: ||a^q||^2 / <g^q, a^q>, so that the step goes as far along a as FedAvg's does, but
  at most 1.5 ||a^q||.
* ``fedexp``: max(1, S / (2 (||a^q||^2 + eps))) ||a^q|| with S = sum_i w_i ||g_i^q||^2, FedAvg's
  step at the server rate of FedExP (Jhunjhunwala et al. 2023, arXiv:2301.09604): longer the more
  the clients disagree. The paper has equal weights, its released code data weights as here.
  Both have one rate for the whole model and an absolute eps (in the code 0.001 m, for EMNIST 0.1 m,
  falling with the square of the client rate); here the rate is by layer and eps = S / 1000, so that
  scaling the updates scales the step. They also evaluate the mean of the last two models, which is
  left out.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort, Vector

Length = Literal["own", "unit", "average", "clipped_average", "progress", "fedexp"]

_LONGEST_ROW = 3.0  # times the median: honest clients with more data also have longer updates
_LONGEST_PROGRESS = 1.5
_FEDEXP_EPS = 1e-3  # times S: at most 500 times the average, and 8 times a typical update
_TINY = torch.finfo(torch.float64).tiny


def length_factors(cohort: Cohort, direction: Vector, dots: Tensor | None, how: Length) -> Tensor:
    """Return the factor (Q,) that gives every layer of ``direction`` its length.

    ``dots`` (Q, m) are <x_i^q, g^q>, computed here if they are needed and None.
    """
    lengths = cohort.lengths(direction).clamp(min=_TINY)
    if how == "unit":
        return torch.where(lengths > _TINY, 1 / lengths, 0)
    weights = cohort.weights.expand(len(cohort.layout), -1)
    if how == "clipped_average":
        weights = weights * clipping(cohort)
    average = _combined_length(cohort, weights)
    if how == "fedexp":
        average = average * _extrapolation(cohort, average.square())
    if how != "progress":
        return torch.where(lengths > _TINY, average / lengths, 0)  # a zero layer stays zero
    along = (cohort.dots(direction) if dots is None else dots) @ cohort.weights
    factor = average.square() / along.clamp(min=_TINY)
    return torch.minimum(factor, _LONGEST_PROGRESS * average / lengths)


def clipping(cohort: Cohort) -> Tensor:
    """Return c_i = min(1, 3 median_j ||g_j^q|| / ||g_i^q||), (Q, m)."""
    norms = cohort.square_norms.sqrt()
    limit = _LONGEST_ROW * norms.quantile(0.5, dim=-1, keepdim=True)
    return (limit / norms.clamp(min=_TINY)).clamp(max=1)


def _extrapolation(cohort: Cohort, average: Tensor) -> Tensor:
    """max(1, S / (2 (||a^q||^2 + eps))) by layer."""
    mean = cohort.square_norms @ cohort.weights
    return (mean / (2 * (average + _FEDEXP_EPS * mean)).clamp(min=_TINY)).clamp(min=1)


def _combined_length(cohort: Cohort, weights: Tensor) -> Tensor:
    """||sum_i w[q, i] x_i^q|| by layer, from the Gram matrices."""
    square = torch.einsum("qi,qij,qj->q", weights, cohort.grams, weights)
    return square.clamp(min=0).sqrt()
