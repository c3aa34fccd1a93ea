"""ConFIG: the conflict-free direction, computed without memory in every round (eq. 4.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.combination import Offset, correction
from fedcraft.errors import require
from fedcraft.linalg import ratio
from fedcraft.updates import Layout

Meaning = Literal["original", "target", "layerwise"]
Weighting = Literal["data", "uniform", "ones"]


class ConFIG(Aggregator):
    """Three rules have this name; ``meaning`` selects one.

    * ``"layerwise"`` (default): g^q = (U^q)^+ rho for every layer, that is CRAFT with a zero
      reference; the ablation that the paper's comparison is about.
    * ``"target"``: g = U^+ rho on the whole vector, the definition of section 4.1.
    * ``"original"``: v = U^+ w with w = 1 and the length of the original paper,
      g = (sum_i <g_i, v^>) v^, v^ = v / ||v||, on the whole vector.

    ``weighting`` sets the targets: ``"data"`` sizes, ``"uniform"`` 1/m, or ``"ones"`` (the default
    of ``"original"``). ``by_layer=True`` applies ``"original"`` to every layer. The target of a
    zero row is lost, not divided among the others: the pseudo-inverse ignores it. The certificate's
    residual refers to the targets, with ``"original"`` to w scaled to its length. Remembers
    nothing; cost O(m^2 d + m^3).
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

    def direction(self, cohort: Cohort) -> Outcome:
        by_layer = self.by_layer or len(cohort.layout) == 1
        scope = cohort if by_layer else _whole(cohort)
        targets, nothing = self._targets(cohort), Offset.of(scope)
        direction, projection = correction(scope, targets, nothing, renormalise=False)
        outcome = Outcome(direction.vector(), direction.dots(), projection=projection)
        if self.meaning == "original":
            factor = ratio(direction.dots().sum(-1), direction.squares())  # sum <g_i, v> / ||v||^2
            outcome = replace(outcome.scaled(scope, factor), projection=projection.scaled(factor))
        return outcome if by_layer else replace(outcome, dots=None)

    def _targets(self, cohort: Cohort) -> Tensor:
        if self.weighting == "data":
            return cohort.weights
        value = 1.0 if self.weighting == "ones" else 1 / cohort.size
        return torch.full_like(cohort.weights, value)


def _whole(cohort: Cohort) -> Cohort:
    return replace(cohort, layout=Layout.whole(cohort.dimension))
