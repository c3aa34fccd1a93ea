"""ConFIG: the conflict-free direction rebuilt from nothing in every round (eq. 4.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.certificate import Correction
from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.projection import project
from fedcraft.errors import require
from fedcraft.updates import Layout

__all__ = ["ConFIG"]

Meaning = Literal["original", "target", "layerwise"]
Weighting = Literal["data", "uniform", "ones"]


class ConFIG(Aggregator):
    """Three rules go by this name; ``meaning`` says which one.

    * ``"layerwise"`` (default): g^q = (U^q)^+ rho for every layer, that is CRAFT with a zero
      reference; the ablation that the paper's comparison is about.
    * ``"target"``: g = U^+ rho on the whole vector, the definition of section 4.1.
    * ``"original"``: v = U^+ w with w = 1 and the length of the original paper,
      g = (sum_i <g_i, v^>) v^, v^ = v / ||v||, on the whole vector.

    ``weighting`` sets the targets: ``"data"`` sizes, ``"uniform"`` 1/m, or ``"ones"`` (the default
    of ``"original"``). ``by_layer=True`` applies ``"original"`` to every layer. A zero row's target
    is lost, not shared out: the pseudo-inverse ignores it. The certificate's residual is that of
    the targets, for ``"original"`` of w scaled to its length. Remembers nothing; cost
    O(m^2 d + m^3).
    """

    def __init__(
        self,
        *,
        meaning: Meaning = "layerwise",
        weighting: Weighting | None = None,
        by_layer: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        meanings, weightings = get_args(Meaning), get_args(Weighting)
        require(meaning in meanings, "meaning", f"one of {meanings}", meaning)
        known = weighting is None or weighting in weightings
        require(known, "weighting", f"one of {weightings}", weighting)
        self.meaning: Meaning = meaning
        self.weighting = weighting or ("ones" if meaning == "original" else "data")
        self.by_layer = meaning == "layerwise" if by_layer is None else by_layer

    def _direction(self, cohort: Cohort) -> Outcome:
        by_layer = self.by_layer or len(cohort.layout) == 1
        scope = cohort if by_layer else _whole(cohort)
        nothing = torch.zeros(len(scope.layout), cohort.size, dtype=torch.float64)
        solution = project(
            scope, self._targets(cohort), nothing, tau=0.0, eps=0.0, renormalise=False
        )
        direction = scope.combine(solution.rows)
        dots = (scope.grams @ solution.rows.unsqueeze(-1)).squeeze(-1)
        square = (solution.rows * dots).sum(-1)
        solution.complete(scope, direction, dots, square)
        targets, norm = solution.targets, solution.correction_norm
        if self.meaning == "original":
            factor = _projection_length(dots, square)
            direction = scope.rescaled(direction, factor)
            dots, targets = dots * factor.unsqueeze(-1), targets * factor.unsqueeze(-1)
            norm = norm * factor.abs()
        correction = Correction(targets, solution.active, solution.rank, norm)
        return Outcome(direction, dots if by_layer else None, correction=correction)

    def _targets(self, cohort: Cohort) -> Tensor:
        if self.weighting == "data":
            return cohort.weights
        value = 1.0 if self.weighting == "ones" else 1 / cohort.size
        return torch.full_like(cohort.weights, value)


def _whole(cohort: Cohort) -> Cohort:
    return replace(cohort, layout=Layout.whole(cohort.dimension))


def _projection_length(dots: Tensor, square: Tensor) -> Tensor:
    """(sum_i <g_i, v>) / ||v||^2 by layer, zero where v = 0."""
    return torch.where(square > 0, dots.sum(-1) / torch.where(square > 0, square, 1), 0)
