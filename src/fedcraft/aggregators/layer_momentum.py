"""The control rule of our ablations: CRAFT's scaling and memory without its conflict resolution."""

from __future__ import annotations

import torch

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.certificate import MEASURABLE
from fedcraft.aggregators.cohort import Cohort
from fedcraft.linalg import ratio


class LayerMomentum(Aggregator):
    """g^q = U(g_{t-1}^q) + sum_i rho_i U(g_i^q) for every layer, with U(v) = v / ||v||.

    It remembers and normalises as CRAFT does and has its active set (rows shorter than 1e-6 count
    for nothing, a layer without others takes the plain average), but nothing is projected: the
    difference to CRAFT is the effect of the alignment constraints. Not in the paper. Cost
    O(m d); remembers one vector.
    """

    def direction(self, cohort: Cohort) -> Outcome:
        norms = cohort.square_norms.sqrt()
        active = norms >= MEASURABLE
        alive = active.any(dim=-1)
        shares = torch.where(active, cohort.weights / norms.clamp(min=MEASURABLE), 0)
        shares = torch.where(alive.unsqueeze(-1), shares, cohort.weights)
        previous = self.memory.get("previous")
        scale = None if previous is None else ratio(1, cohort.lengths(previous)) * alive
        direction = cohort.combine(shares, previous, scale)
        self.memory = {**self.memory, "previous": direction.clone()}
        return Outcome(direction)
