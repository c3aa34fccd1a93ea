"""FedFV: project conflicts away, in the order of the losses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.cohort import Cohort, in_memory
from fedcraft.aggregators.combination import Combination, uniform_mean
from fedcraft.aggregators.uploads import Uploads
from fedcraft.errors import require
from fedcraft.linalg import rounding


class FedFV(Aggregator):
    """Federated fair averaging (Wang et al. 2021): g_t = g ||mean_i g_i|| / ||g||, where

    1. clients are ordered by loss; the alpha share with the largest losses is not changed;
    2. every other g_i is projected, for j in that order with <g_j, p_i> < 0, off g_j;
    3. g is the uniform mean of the p_i;
    4. for each of ``tau`` rounds, oldest first, g is projected off the sum of those last uploads
       from that round which it conflicts with.

    * ``external``: the paper's step 4 covers the tau rounds before this one (``"paper"``); the
      released code covers tau rounds *ending with* this one, so that tau = 1 looks at no earlier
      round at all (``"code"``, the default, since all published runs used it).
    * ``guard`` is added to ||g_j||^2, to the squared length of each round's sum and to ||g||: 0 as
      in the authors' code, 1e-6 in another released program.

    g = 0 gives 0 instead of NaN; nothing is projected off an update too short to be squared. Steps
    1 to 3 are m x m algebra on the Gram matrix. Remembers at most tau rounds of uploads; cost
    O(m^2 d + tau m d).
    """

    needs = frozenset({"losses"})

    def __init__(
        self,
        *,
        alpha: float = 0.1,
        tau: int = 1,
        external: Literal["code", "paper"] = "code",
        guard: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require(0 <= alpha <= 1, "alpha", "a number in [0, 1]", alpha)
        require(tau >= 0 and tau == int(tau), "tau", "a whole number >= 0", tau)
        require(external in ("code", "paper"), "external", "'code' or 'paper'", external)
        require(guard >= 0, "guard", "a number >= 0", guard)
        self.alpha = alpha
        self.tau = int(tau)
        self.external = external
        self._offset = guard

    def direction(self, cohort: Cohort) -> Outcome:
        number = self.memory.get("round", 0) + 1
        earlier = Uploads.load(self.memory).without(cohort.client_ids)
        step = Combination.of(cohort, self._internal(cohort))
        for back in self._rounds_back(number):
            if back > 0:
                step = self._off_earlier(step, earlier.of(number - back).rows)
            else:
                step = self._off_current(step)
        self._remember(cohort, earlier, number)
        return self._rescaled(step)

    def _internal(self, cohort: Cohort) -> Tensor:
        """Steps 1 to 3: coefficients of g on the rows."""
        losses = cast(Tensor, cohort.losses)
        order = torch.argsort(losses, stable=True)
        pieces = torch.eye(cohort.size, dtype=torch.float64)  # row i: p_i on the updates
        projected = torch.ones(cohort.size, dtype=torch.bool)
        projected[order[cohort.size - self._kept(cohort.size) :]] = False
        for j in order.tolist():
            dots = pieces @ cohort.gram[j]
            conflicts = projected & (dots < 0)
            conflicts[j] = False
            pieces[conflicts, j] -= dots[conflicts] / self._divisor(cohort, cohort.gram[j, j])
        return pieces.mean(0)

    def _kept(self, size: int) -> int:
        return size - math.ceil((size - 1) * (1 - self.alpha)) if self.alpha > 0 else 0

    def _rounds_back(self, number: int) -> range:
        """How many rounds back step 4 looks, oldest first; nothing until there are tau rounds."""
        newest = 0 if self.external == "code" else 1
        oldest = self.tau - 1 + newest
        return range(oldest, newest - 1, -1) if number > oldest else range(0)

    def _off_earlier(self, step: Combination, rows: Tensor | None) -> Combination:
        if rows is None:
            return step
        vector = in_memory(step.vector())
        total = (rows @ vector < 0).to(rows) @ rows
        dot = float(torch.dot(vector, total))
        if dot >= 0:
            return step
        share = dot / self._divisor(step.cohort, torch.dot(total, total))
        rest = step.offset.vector
        rest = -share * total if rest is None else in_memory(rest) - share * total
        return Combination.of(step.cohort, step.coefficients, rest)

    def _off_current(self, step: Combination) -> Combination:
        dots = step.dots().sum(0)
        against = (dots < 0).to(torch.float64)
        dot = torch.dot(dots, against)
        if dot >= 0:
            return step
        share = dot / self._divisor(step.cohort, against @ step.cohort.gram @ against)
        return replace(step, coefficients=step.coefficients - share * against)

    def _divisor(self, cohort: Cohort, square: Tensor) -> float:
        """Return ||v||^2 + guard; Inf where that is zero, so that nothing is subtracted from v."""
        guarded = float(square) + self._offset
        return guarded if guarded >= torch.finfo(cohort.dtype).tiny else math.inf

    def _rescaled(self, step: Combination) -> Outcome:
        length = step.length()
        if length <= _rounding(step):
            return Outcome(step.vector(0.0))
        wanted = uniform_mean(step.cohort).length()
        return Outcome(step.vector(wanted / (length + self._offset)))

    def _remember(self, cohort: Cohort, earlier: Uploads, number: int) -> None:
        self.memory = {"round": number}
        horizon = self.tau - 1 if self.external == "code" else self.tau
        if horizon > 0:
            kept = earlier.since(number - horizon + 1)
            self.memory |= kept.add(cohort.client_ids, cohort.matrix, number).dump()


def _rounding(step: Combination) -> float:
    """Shorter sums are rounding noise of a sum that should be zero."""
    norms = step.cohort.gram.diagonal().clamp(min=0).sqrt()
    return rounding(step.cohort.dtype) / 2 * float((step.coefficients.abs() * norms).sum())
