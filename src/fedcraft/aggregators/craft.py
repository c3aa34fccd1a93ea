"""CRAFT: the step closest to the last one that moves every client forward (section 4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedcraft.aggregators.agreement import Agreement
from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.certificate import MEASURABLE
from fedcraft.aggregators.cohort import Cohort, Vector
from fedcraft.aggregators.combination import Combination, Offset, correction
from fedcraft.aggregators.lengths import clipping
from fedcraft.errors import InputError, require
from fedcraft.linalg import WIDEST, Constraint, Projection, UnitRows

TargetName = Literal["data", "uniform", "agreement"]
Automatic = Literal["auto"]
Target = TargetName | Callable[[Cohort], Tensor]
ReferenceKind = Literal["previous", "none", "moving_average"]
# Rounds of an MLP or a CNN need corrections of at most three times ||rho - U r||; ten clients, two
# of which nearly coincide but have different targets, would need thousands.
GAIN = 30.0
_TINY = torch.finfo(torch.float64).tiny


class Craft(Aggregator):
    """Solve, for every layer q, eq. 4.3 in its closed form (eq. 4.7)::

        g^q = r^q + (U^q)^+ (rho - U^q r^q),      r^q = g_{t-1}^q / (||g_{t-1}^q|| + eps)

    with u_i = g_i / (||g_i|| + eps) the rows of U, so that <u_i, g> = rho_i for every client whose
    update reaches ``tau`` (appendix B.3); r = 0 in the first round. Cost O(m^2 d + Q m^3);
    remembers one vector.

    * ``constraint``: ``"equal"`` is the paper's U g = rho; ``"at_least"`` asks for U g >= rho and
      corrects only the clients that fall short.
    * ``reference``: ``"previous"`` step (the paper), ``"none"`` (ConFIG by layer), or the
      ``"moving_average"`` of unit steps with ``momentum``.
    * ``target``: rho from ``"data"`` sizes (the paper), ``"uniform"``, or a callable of the cohort
      that gives a number >= 0 per client; in every layer rho sums to one over the active ones.
      ``"agreement"`` asks for max(rho_i, f cos(u_i, u)) with u the mean of the unit updates,
      weighted like rho: with f = ``agreement`` = 1 no client gets less than the mean would give it,
      and none is in conflict. ``leave_one_out`` leaves client i out of its own u.
    * ``power``: sizes count as n_i^power in ``"data"`` and ``"agreement"``.
    * ``reference_weight``: r counts this much (1 in the paper).
    * ``agreement="auto"`` and ``reference_weight="auto"`` weigh the two by how far this round's
      clients agree: see :mod:`fedcraft.aggregators.agreement`.
    * ``clip``: longest allowed ||g^q||; what it costs shows in the certificate's residual.
      ``"auto"`` limits ||g^q - r^q|| to 30 ||rho - U^q r^q|| instead, continuously, which acts
      only where clients nearly coincide and have different targets. None: no limit.
    * ``released_code=True`` does what the authors' code does where it differs: eps = tau = 0, the
      cut-off of ``torch.linalg.pinv``, which grows with the layer's size, no limit unless ``clip``
      is a number, a layer with one usable client takes that client's raw update, one with none
      does not move.
    """

    def __init__(
        self,
        *,
        constraint: Constraint = "equal",
        reference: ReferenceKind = "previous",
        target: Target = "data",
        power: float = 1.0,
        agreement: float | Automatic = 1.0,
        leave_one_out: bool = False,
        reference_weight: float | Automatic = 1.0,
        momentum: float = 0.9,
        tau: float = MEASURABLE,
        eps: float = 1e-12,
        clip: float | Automatic | None = "auto",
        released_code: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        constraints, references, targets = map(get_args, (Constraint, ReferenceKind, TargetName))
        require(constraint in constraints, "constraint", f"one of {constraints}", constraint)
        require(reference in references, "reference", f"one of {references}", reference)
        named = callable(target) or target in targets
        require(named, "target", f"a callable or one of {targets}", target)
        require(power >= 0, "power", "a number >= 0", power)
        require(_share(agreement), "agreement", "a number in [0, 1] or 'auto'", agreement)
        weight = reference_weight
        require(_share(weight), "reference_weight", "a number in [0, 1] or 'auto'", weight)
        require(0 <= momentum < 1, "momentum", "a number in [0, 1)", momentum)
        require(tau >= 0, "tau", "a number >= 0", tau)
        require(eps >= 0, "eps", "a number >= 0", eps)
        limit = clip in (None, "auto") or (isinstance(clip, int | float) and clip > 0)
        require(limit, "clip", "a positive number, 'auto' or None", clip)
        self.constraint: Constraint = constraint
        self.reference: ReferenceKind = reference
        self.target: Target = target
        self.power = power
        self.agreement: float | Automatic = agreement
        self.leave_one_out = leave_one_out
        self.reference_weight: float | Automatic = reference_weight
        self.momentum = momentum
        self.tau = 0.0 if released_code else tau
        self.eps = 0.0 if released_code else eps
        self.clip: float | Automatic | None = clip
        self.released_code = released_code

    def direction(self, cohort: Cohort) -> Outcome:
        r = self._reference(cohort)
        agreement = self._agreement(cohort, r)
        r = self._weighted(r, agreement)
        rho = self._targets(cohort, agreement)
        delta, projection = self._projection(cohort, rho, r)
        g = r + delta
        ahead = agreement.look_ahead if agreement else 0.0
        outcome = Outcome(g.vector(), g.dots(), g.squares(), r.dots, projection, ahead)
        outcome = self._clipped(cohort, outcome)
        self._remember(cohort, outcome.direction)
        return outcome

    def _reference(self, cohort: Cohort) -> Offset:
        """r^q = g_{t-1}^q / (||g_{t-1}^q|| + eps) (eq. 4.6), zero in the first round."""
        last = None if self.reference == "none" else self.memory.get("reference")
        offset = Offset.of(cohort, last)
        return replace(offset, scale=self._unit_factors(offset.lengths))

    def _agreement(self, cohort: Cohort, r: Offset) -> Agreement | None:
        """How far the clients agree, if an option needs it."""
        if self.target != "agreement" and self.reference_weight != "auto":
            return None
        units = UnitRows.of(cohort.grams, self.tau, self.eps, cohort.square_norms)
        shares = units.renormalised(self._shares(cohort))
        agreement = Agreement(units.kernel, shares, units.scale * r.dots)
        if self.agreement != "auto":
            return agreement
        return agreement.counting(cohort.square_norms.sqrt() * clipping(cohort))

    def _weighted(self, r: Offset, agreement: Agreement | None) -> Offset:
        """mu r: the weight of the reference."""
        if self.reference_weight == 1:
            return r
        if agreement is not None and self.reference_weight == "auto":
            return r.times(agreement.memory)
        return r.times(torch.full_like(r.scale, float(self.reference_weight)))

    def _targets(self, cohort: Cohort, agreement: Agreement | None) -> Tensor:
        """rho (appendix B.2), or (Q, m) with the progress that the mean would give (agreement)."""
        if self.target != "agreement" or agreement is None:
            return self._shares(cohort)
        cosines = agreement.others_cosines if self.leave_one_out else agreement.cosines
        f = agreement.trust.unsqueeze(-1) if self.agreement == "auto" else float(self.agreement)
        return torch.maximum(agreement.shares, f * cosines)

    def _shares(self, cohort: Cohort) -> Tensor:
        """The share of progress each client asks for; in every layer they are renormalised."""
        if self.target in ("data", "agreement"):
            return cohort.weights if self.power == 1 else cohort.weights**self.power
        if not callable(self.target):
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

    def _projection(self, cohort: Cohort, rho: Tensor, r: Offset) -> tuple[Combination, Projection]:
        """Delta^q = (U^q)^+ (rho - U^q r^q) (eq. 4.7) over the active clients (appendix B.3).

        A layer without active clients takes the plain average, small by definition: there Delta is
        the average minus r.
        """
        delta, projection = correction(
            cohort,
            rho,
            r,
            constraint=self.constraint,
            tau=self.tau,
            eps=self.eps,
            renormalise=self.target != "agreement",
            widest=math.inf if self.released_code else WIDEST,
            gain=GAIN if self.clip == "auto" and not self.released_code else None,
        )
        usable = projection.active.sum(-1)
        if self.released_code:
            return _as_released(delta, projection, usable)
        projected = usable > 0
        rows = torch.where(projected.unsqueeze(-1), delta.coefficients, cohort.weights)
        return replace(delta, coefficients=rows, share=projected.to(rows.dtype) - 1), projection

    def _clipped(self, cohort: Cohort, outcome: Outcome) -> Outcome:
        """Shorten every layer that is longer than ``clip``."""
        if self.clip is None or isinstance(self.clip, str):
            return outcome
        # Measured: the square from products is inexact where clients cancel.
        lengths = cohort.lengths(outcome.direction)
        shrink = (self.clip / lengths.clamp(min=_TINY)).clamp(max=1)
        return outcome.scaled(cohort, shrink)

    def _remember(self, cohort: Cohort, direction: Vector) -> None:
        if self.reference == "none":
            return
        if self.reference == "previous":
            kept = direction.clone()
        else:
            share = (1 - self.momentum) * self._unit_factors(cohort.lengths(direction))
            kept = cohort.scaled(direction, share, self.memory.get("reference"), self.momentum)
        self.memory = {**self.memory, "reference": kept}

    def _unit_factors(self, lengths: Tensor) -> Tensor:
        return torch.where(lengths > 0, 1 / (lengths + self.eps).clamp(min=_TINY), 0)


def _share(value: object) -> bool:
    return value == "auto" or (isinstance(value, int | float) and 0 <= value <= 1)


def _as_released(
    delta: Combination, projection: Projection, usable: Tensor
) -> tuple[Combination, Projection]:
    """Where one client is usable take its raw update, where none is do not move."""
    single = usable == 1
    raw = projection.active.to(torch.float64)
    delta = replace(
        delta,
        coefficients=torch.where(single.unsqueeze(-1), raw, delta.coefficients),
        vectors={q: vector for q, vector in delta.vectors.items() if not single[q]},
        products={q: dots for q, dots in delta.products.items() if not single[q]},
        share=(usable > 1).to(raw.dtype) - 1,
    )
    return delta, replace(projection, norm=torch.where(single, 0, projection.norm))
