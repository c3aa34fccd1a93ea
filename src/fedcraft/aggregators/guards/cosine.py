"""The agreement filter: clients that pull against the others, or send far too long updates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.guards.agreement import others_cosines
from fedcraft.aggregators.guards.base import Guard, Judgement, Scale, check_scale, kernel, slack
from fedcraft.aggregators.guards.copies import same_direction
from fedcraft.errors import require

_GROWTH, _FALL = 2.0, 0.95  # how far the usual length may change from one round to the next
_MAD = 1.4826  # times the median deviation of a normal distribution is its standard deviation


class Cosine(Guard):
    """Leave out, one by one, the client that agrees least with the mean of the others::

        a_i = cos(u_i, sum_{j != i} v_j u_j)

    while the smallest a_i is below min(``least``, median - ``spread`` s), with the median and the
    spread s (from the median deviation) of the a_j of the clients still in. So a client must pull
    against the others *and* do so clearly more than is usual in this round: where clients differ
    much, many honest ones have a_i < 0. Its copies go with it. After each one the others are
    measured again, because a liar spoils the mean for the honest. Before all that, clients are left
    out whose update is more than ``longest`` times as long as usual: the median of the round, but
    at most twice and at least 0.95 times what was usual in the round before, which the guard
    remembers. Otherwise one round with a majority of huge updates, which small cohorts do draw,
    would end the training; and once most clients fit their data and send short updates, those that
    still learn would be left out.

    u are unit updates, ``scale`` says of what. All v_j are equal, except that clients whose cosine
    reaches ``similarity`` share one vote and one weight: copies cannot outvote the others. At most
    the share ``most`` of the cohort is left out, except for its length, because a majority of liars
    cannot be told from a minority. Cost O(m^3) on the Gram matrix.
    """

    def __init__(
        self,
        *,
        least: float = 0.0,
        spread: float = 1.5,
        longest: float = 10.0,
        most: float = 0.5,
        similarity: float = 0.95,
        scale: Scale = "layers",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require(-1 <= least <= 1, "least", "a cosine", least)
        require(spread >= 0, "spread", "a number >= 0", spread)
        require(longest > 1, "longest", "a number above 1", longest)
        require(0 < most < 1, "most", "a share of the cohort in (0, 1)", most)
        require(0 < similarity <= 1, "similarity", "a cosine in (0, 1]", similarity)
        require(scale != "raw", "scale", "'unit' or 'layers'", scale)
        self.least, self.spread, self.longest = least, spread, longest
        self.most, self.similarity, self.scale = most, similarity, check_scale(scale)

    def judge(self, cohort: Cohort) -> Judgement:
        cosines = kernel(cohort, self.scale)
        copies = same_direction(cosines, self.similarity)
        votes = 1 / copies.sum(dim=1)
        reasons = self._length_reasons(cohort)
        kept = torch.tensor([not why for why in reasons])
        for _ in range(cohort.size):
            agreement = others_cosines(cosines, votes * kept)
            worst = int(agreement.masked_fill(~kept, torch.inf).argmin())
            against = copies[worst].bool() & kept
            limit = self._limit(agreement[kept], votes[kept]) - slack(cohort, cosines)
            few = int((~kept | against).sum()) <= self.most * cohort.size
            if not few or not float(agreement[worst]) < limit:
                break
            for row in torch.nonzero(against).flatten().tolist():
                reasons[row] = f"cosine {float(agreement[row]):+.2f} with the others"
            kept &= ~against
        return Judgement(tuple(reasons), factors=votes)

    def _limit(self, agreement: Tensor, votes: Tensor) -> float:
        centre = _weighted_median(agreement, votes)
        deviation = _MAD * _weighted_median((agreement - centre).abs(), votes)
        return min(self.least, centre - self.spread * deviation)

    def _length_reasons(self, cohort: Cohort) -> list[str]:
        """Return why clients with far too long updates are left out, "" for all others."""
        norms = cohort.square_norms.sum(0).sqrt()
        moving = norms[norms > 0].sort().values
        if not len(moving):
            return [""] * cohort.size
        usual = float(moving[(len(moving) - 1) // 2])
        if "usual_length" in self.memory:
            before = self.memory["usual_length"]
            usual = min(max(usual, _FALL * before), _GROWTH * before)
        self.memory = {"usual_length": usual}
        return [
            f"update {norm / usual:.3g} times as long as usual"
            if norm > self.longest * usual
            else ""
            for norm in norms.tolist()
        ]


def _weighted_median(values: Tensor, weights: Tensor) -> float:
    """Return the middle of the values, the mean of two where the weights divide evenly."""
    ordered = values.sort()
    passed = weights[ordered.indices].cumsum(0) / weights.sum()
    low = int(torch.searchsorted(passed, 0.5 - 1e-9))
    high = min(int(torch.searchsorted(passed, 0.5 + 1e-9)), len(values) - 1)
    return float(ordered.values[low] + ordered.values[high]) / 2
