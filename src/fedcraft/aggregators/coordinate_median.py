"""The coordinate-wise median of the updates."""

from __future__ import annotations

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.trimmed_mean import middle_mean


class CoordinateMedian(Aggregator):
    """g[k] = median_i g_i[k], every client alike (Yin et al., ICML 2018; Flower's FedMedian).

    The mean of the two middle values where m is even. Needs the rows in memory; remembers nothing;
    cost O(m log m d).
    """

    def direction(self, cohort: Cohort) -> Outcome:
        return Outcome(middle_mean(cohort.matrix, (cohort.size - 1) // 2))
