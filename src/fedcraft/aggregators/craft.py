"""CRAFT: the step closest to the last one that moves every client forward (section 4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.certificate import MEASURABLE, Correction
from fedcraft.aggregators.cohort import Cohort, Vector
from fedcraft.aggregators.projection import WIDEST, Constraint, Projection, project
from fedcraft.errors import InputError, require

__all__ = ["Craft", "Target"]

TargetName = Literal["data", "uniform"]
Target = TargetName | Callable[[Cohort], Tensor]
_TINY = torch.finfo(torch.float64).tiny
ReferenceKind = Literal["previous", "none", "moving_average"]


class Craft(Aggregator):
    """Solve, for every layer q, eq. 4.3 in its closed form (eq. 4.7)::

        g^q = r^q + (U^q)^+ (rho - U^q r^q),      r^q = g_{t-1}^q / (||g_{t-1}^q|| + eps)

    with u_i = g_i / (||g_i|| + eps) the rows of U, so that <u_i, g> = rho_i for every client whose
    update reaches ``tau`` (appendix B.3); r = 0 in the first round. Cost O(m^2 d + Q m^3);
    remembers one vector.

    * ``constraint``: ``"equal"`` is the paper's U g = rho; ``"at_least"`` asks for U g >= rho and
      so corrects only those who fall short.
    * ``reference``: ``"previous"`` step (the paper), ``"none"`` (ConFIG by layer), or the
      ``"moving_average"`` of unit steps with ``momentum``.
    * ``target``: rho from ``"data"`` sizes (the paper), ``"uniform"``, or a callable of the cohort
      that gives a number >= 0 per client; in every layer rho sums to one over the active ones.
    * ``clip``: longest allowed ||g^q||; what it costs shows in the certificate's residual.
    * ``released_code=True`` does what the authors' code does where it differs: eps = tau = 0, the
      cut-off of ``torch.linalg.pinv``, which grows with the layer's size, a layer with one usable
      client takes that client's raw update, one with none stays put.
    """

    def __init__(
        self,
        *,
        constraint: Constraint = "equal",
        reference: ReferenceKind = "previous",
        target: Target = "data",
        momentum: float = 0.9,
        tau: float = MEASURABLE,
        eps: float = 1e-12,
        clip: float | None = None,
        released_code: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        constraints, references, targets = map(get_args, (Constraint, ReferenceKind, TargetName))
        require(constraint in constraints, "constraint", f"one of {constraints}", constraint)
        require(reference in references, "reference", f"one of {references}", reference)
        named = callable(target) or target in targets
        require(named, "target", f"a callable or one of {targets}", target)
        require(0 <= momentum < 1, "momentum", "a number in [0, 1)", momentum)
        require(tau >= 0, "tau", "a number >= 0", tau)
        require(eps >= 0, "eps", "a number >= 0", eps)
        require(clip is None or clip > 0, "clip", "a positive number or None", clip)
        self.constraint: Constraint = constraint
        self.reference: ReferenceKind = reference
        self.target: Target = target
        self.momentum = momentum
        self.tau = 0.0 if released_code else tau
        self.eps = 0.0 if released_code else eps
        self.clip = clip
        self.released_code = released_code

    def _direction(self, cohort: Cohort) -> Outcome:
        reference = self._recall(cohort)
        projected = project(
            cohort,
            self._targets(cohort),
            reference.dots,
            tau=self.tau,
            eps=self.eps,
            constraint=self.constraint,
            widest=math.inf if self.released_code else WIDEST,
        )
        solution, keep = self._special_layers(cohort, projected)
        rows = solution.rows
        direction = cohort.combine(rows, reference.vector, reference.scale * keep)
        dots = (cohort.grams @ rows.unsqueeze(-1)).squeeze(-1) + reference.dots * keep.unsqueeze(-1)
        square = _square_lengths(rows, keep, dots, reference)
        solution.complete(cohort, direction, dots, square)
        if self.clip is not None:
            lengths = cohort.lengths(direction)  # measured: `square` is rough where clients cancel
            shrink = (self.clip / lengths.clamp(min=_TINY)).clamp(max=1)
            direction = cohort.rescaled(direction, shrink)
            dots, square = dots * shrink.unsqueeze(-1), square * shrink.square()
        self._remember(cohort, direction)
        correction = Correction(
            solution.targets,
            solution.active,
            solution.rank,
            solution.correction_norm,
            one_sided=self.constraint == "at_least",
        )
        return Outcome(direction, dots, square, reference.dots, correction)

    def _targets(self, cohort: Cohort) -> Tensor:
        if self.target == "data":
            return cohort.weights
        if self.target == "uniform":
            return torch.full_like(cohort.weights, 1 / cohort.size)
        targets = torch.as_tensor(self.target(cohort), dtype=torch.float64)
        possible = (targets >= 0) & torch.isfinite(targets)
        fits = targets.shape == cohort.weights.shape and bool(possible.all())
        if not fits or not bool(targets.any()):
            raise InputError(
                f"target: expected {cohort.size} finite numbers >= 0 from the callable, one of "
                f"them above 0, found {targets.tolist()}"
            )
        return targets

    def _special_layers(self, cohort: Cohort, solution: Projection) -> tuple[Projection, Tensor]:
        """Replace the projection where it does not apply; return it and the reference's share."""
        usable = solution.active.sum(-1)
        if not self.released_code:
            # Nobody moved this layer measurably: take the plain average, small by definition.
            rows = torch.where(usable.unsqueeze(-1) > 0, solution.rows, cohort.weights)
            return replace(solution, rows=rows), (usable > 0).to(torch.float64)
        single = usable == 1
        raw = solution.active.to(torch.float64)
        alone = replace(
            solution,
            rows=torch.where(single.unsqueeze(-1), raw, solution.rows),
            vectors={q: vector for q, vector in solution.vectors.items() if not single[q]},
            correction_norm=torch.where(single, 0, solution.correction_norm),
        )
        return alone, (usable > 1).to(torch.float64)

    def _recall(self, cohort: Cohort) -> _Reference:
        """Return r by layer as a stored vector and the factors that make its layers unit."""
        layers = len(cohort.layout)
        vector = None if self.reference == "none" else self._memory.get("reference")
        if vector is None:
            nothing = torch.zeros(layers, dtype=torch.float64)
            dots = nothing.unsqueeze(-1).expand(-1, cohort.size)
            return _Reference(None, nothing, dots, nothing)
        lengths = cohort.lengths(vector)
        scale = self._unit_factors(lengths)
        dots = scale.unsqueeze(-1) * cohort.dots(vector)
        return _Reference(vector, scale, dots, (scale * lengths).square())

    def _remember(self, cohort: Cohort, direction: Vector) -> None:
        if self.reference == "none":
            return
        if self.reference == "previous":
            kept = direction.clone()
        else:
            share = (1 - self.momentum) * self._unit_factors(cohort.lengths(direction))
            kept = cohort.scaled(direction, share, self._memory.get("reference"), self.momentum)
        self._memory = {**self._memory, "reference": kept}

    def _unit_factors(self, lengths: Tensor) -> Tensor:
        return torch.where(lengths > 0, 1 / (lengths + self.eps).clamp(min=_TINY), 0)


@dataclass(frozen=True)
class _Reference:
    vector: Vector
    scale: Tensor  # (Q,): r^q = scale[q] vector^q
    dots: Tensor  # (Q, m): <x_i^q, r^q>
    square: Tensor  # (Q,): ||r^q||^2, one or zero


def _square_lengths(rows: Tensor, keep: Tensor, dots: Tensor, reference: _Reference) -> Tensor:
    """||g||^2 = <sum_i c_i x_i + r, g> by layer, from products that are known already."""
    along = (rows * reference.dots).sum(-1) + keep * reference.square  # <r, g>
    return ((rows * dots).sum(-1) + keep * along).clamp(min=0)
