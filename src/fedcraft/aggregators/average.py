"""FedAvg's weighted mean."""

from __future__ import annotations

from typing import Any, Literal

import torch

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.cohort import Cohort
from fedcraft.errors import require


class Average(Aggregator):
    """g_t = sum_i rho_i g_i with rho_i = n_i / sum_j n_j over the participants (section 3.1).

    ``weighting="uniform"`` takes rho_i = 1/m instead. Remembers nothing; cost O(m d).
    """

    def __init__(self, *, weighting: Literal["data", "uniform"] = "data", **options: Any) -> None:
        super().__init__(**options)
        require(weighting in ("data", "uniform"), "weighting", "'data' or 'uniform'", weighting)
        self.weighting = weighting

    def direction(self, cohort: Cohort) -> Outcome:
        uniform = torch.full_like(cohort.weights, 1 / cohort.size)
        weights = cohort.weights if self.weighting == "data" else uniform
        return Outcome(cohort.combine(weights), averages=weights)
