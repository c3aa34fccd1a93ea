"""The agreement filter: clients that pull against the others, or send far too long updates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.guards.agreement import others_cosines
from fedcraft.aggregators.guards.base import Judgement, slack, usual_claim
from fedcraft.aggregators.guards.copies import Directions
from fedcraft.errors import require

_GROWTH, _FALL = 2.0, 0.95  # how far the usual length may change from one round to the next
_MAD = 1.4826  # times the median deviation of a normal distribution is its standard deviation


@dataclass(frozen=True)
class Demand:
    """A client is left out below min(``least``, median - ``spread`` s), for every client (m,)."""

    least: Tensor
    spread: Tensor

    def limits(self, agreement: Tensor, votes: Tensor) -> Tensor:
        """Return the limits, with the median and the spread of these clients' agreement."""
        centre, deviation = median_and_spread(agreement, votes)
        # Where all pull against the others, ``least`` counts from what is usual.
        return torch.minimum(self.least + min(centre, 0), centre - self.spread * deviation)


class Cosine(Directions):
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
    still learn would be left out. Left out are also clients that claim more than ``largest_claim``
    times the median number of samples: the cap alone would let such a claim count three times.

    u are unit updates, ``scale`` says of what. All v_j are equal, except that clients whose cosine
    reaches ``similarity`` share one vote and one weight: copies cannot outvote the others. At most
    the share ``most`` of the cohort is left out, except for its length, because a majority of liars
    cannot be told from a minority. Where *all* updates are too long, or claim too much, nobody is
    left out, and too long updates are shortened to ``longest`` times the usual length. Cost O(m^3)
    on the Gram matrix.
    """

    def __init__(
        self,
        *,
        least: float = 0.0,
        spread: float = 1.5,
        longest: float = 10.0,
        largest_claim: float = 1000.0,
        most: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require(-1 <= least <= 1, "least", "a cosine", least)
        require(spread >= 0, "spread", "a number >= 0", spread)
        require(longest > 1, "longest", "a number above 1", longest)
        require(largest_claim > 1, "largest_claim", "a number above 1", largest_claim)
        require(0 < most < 1, "most", "a share of the cohort in (0, 1)", most)
        self.least, self.spread, self.most = least, spread, most
        self.longest, self.largest_claim = longest, largest_claim

    def judge(self, cohort: Cohort) -> Judgement:
        cosines = self.cosines(cohort)
        copies = self.copies(cosines)
        votes = 1 / copies.sum(dim=1)
        norms = cohort.square_norms.sum(0).sqrt()
        longest = self._longest_length(norms)
        reasons, demand = self._objections(cohort, norms, longest), self.demand(cohort)
        if all(reasons):
            return replace(_shortened(norms, longest), factors=votes)
        kept, equal = torch.tensor([not why for why in reasons]), slack(cohort, cosines)
        while bool(kept.any()):
            agreement = others_cosines(cosines, votes * kept)
            limits = demand.limits(agreement[kept], votes[kept]) - equal
            short = (agreement - limits).masked_fill(~kept, torch.inf)
            worst = int(short.argmin())
            against = copies[worst].bool() & kept
            few = int((~kept | against).sum()) <= self.most * cohort.size
            if not few or not float(short[worst]) < 0:
                break
            for row in torch.nonzero(against).flatten().tolist():
                reasons[row] = f"cosine {float(agreement[row]):+.2f} with the others"
            kept &= ~against
        return Judgement(tuple(reasons), factors=votes)

    def judge_alone(self, cohort: Cohort) -> Judgement:
        norms = cohort.square_norms.sum(0).sqrt()
        longest = self._longest_length(norms)
        return _shortened(norms, longest) if float(norms) > longest else Judgement()

    def demand(self, cohort: Cohort) -> Demand:
        """Return how much disagreement it takes to leave a client out."""
        least = torch.full((cohort.size,), self.least, dtype=torch.float64)
        return Demand(least, torch.full_like(least, self.spread))

    def _objections(self, cohort: Cohort, norms: Tensor, longest: float) -> list[str]:
        """Return what speaks against clients before agreement is measured, "" for all others."""
        usual = longest / self.longest
        lengths = [
            f"update {norm / usual:.3g} times as long as usual" if norm > longest else ""
            for norm in norms.tolist()
        ]
        pairs = zip(lengths, self._claim_reasons(cohort), strict=True)
        return [length or claim for length, claim in pairs]

    def _longest_length(self, norms: Tensor) -> float:
        """Return the length from which an update is too long, and remember what is usual."""
        moving = norms[norms > 0].sort().values
        if not len(moving):
            return math.inf
        usual = float(moving[(len(moving) - 1) // 2])
        if "usual_length" in self.memory:
            before = self.memory["usual_length"]
            usual = min(max(usual, _FALL * before), _GROWTH * before)
        self.memory = {**self.memory, "usual_length": usual}
        return self.longest * usual

    def _claim_reasons(self, cohort: Cohort) -> list[str]:
        """Return why clients with impossible sizes are left out, "" for all others."""
        # The weights of a round have sum one; only their quotients say what was claimed.
        claims = cohort.weights / usual_claim(cohort.weights)
        return [
            f"claims {claim:.3g} times the usual number of samples"
            if claim > self.largest_claim
            else ""
            for claim in claims.tolist()
        ]


def _shortened(norms: Tensor, longest: float) -> Judgement:
    """Shorten updates to the longest that is allowed."""
    return Judgement(mixing=torch.diag_embed((longest / norms).clamp(max=1)))


def median_and_spread(values: Tensor, weights: Tensor) -> tuple[float, float]:
    """Return the weighted median, and the spread from the median deviation."""
    centre = _weighted_median(values, weights)
    return centre, _MAD * _weighted_median((values - centre).abs(), weights)


def _weighted_median(values: Tensor, weights: Tensor) -> float:
    """Return the middle of the values, the mean of two where the weights divide evenly."""
    ordered = values.sort()
    passed = weights[ordered.indices].cumsum(0) / weights.sum()
    low = int(torch.searchsorted(passed, 0.5 - 1e-9))
    high = min(int(torch.searchsorted(passed, 0.5 + 1e-9)), len(values) - 1)
    return float(ordered.values[low] + ordered.values[high]) / 2
