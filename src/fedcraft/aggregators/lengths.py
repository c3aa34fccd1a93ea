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
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort, Vector

Length = Literal["own", "unit", "average", "clipped_average", "progress"]

_LONGEST_ROW = 3.0  # times the median: honest clients with more data also have longer updates
_LONGEST_PROGRESS = 1.5
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
        weights = weights * _clipping(cohort)
    average = _combined_length(cohort, weights)
    if how != "progress":
        return average / lengths
    along = (cohort.dots(direction) if dots is None else dots) @ cohort.weights
    factor = average.square() / along.clamp(min=_TINY)
    return torch.minimum(factor, _LONGEST_PROGRESS * average / lengths)


def _clipping(cohort: Cohort) -> Tensor:
    norms = cohort.square_norms.sqrt()
    limit = _LONGEST_ROW * norms.quantile(0.5, dim=-1, keepdim=True)
    return (limit / norms.clamp(min=_TINY)).clamp(max=1)


def _combined_length(cohort: Cohort, weights: Tensor) -> Tensor:
    """||sum_i w[q, i] x_i^q|| by layer, from the Gram matrices."""
    square = torch.einsum("qi,qij,qj->q", weights, cohort.grams, weights)
    return square.clamp(min=0).sqrt()
