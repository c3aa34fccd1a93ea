"""The contract of every aggregation rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

from fedcraft.aggregators.certificate import Certificate, certify
from fedcraft.aggregators.client_measurements import RoundProducts
from fedcraft.aggregators.cohort import Cohort, Vector
from fedcraft.aggregators.guards.base import Guard, Screening
from fedcraft.aggregators.inputs import ArrayLike, Numbers, RoundInput, read_cohort
from fedcraft.aggregators.lengths import Length, length_factors
from fedcraft.errors import InputError, StateError, require
from fedcraft.linalg import Projection
from fedcraft.updates import ClientId, RoundContext, Updates

State = dict[str, Any]
NonFinite = Literal["raise", "drop"]


@dataclass(frozen=True)
class Outcome:
    """What a rule returns: its direction, and products that it has computed anyway.

    Products that are left out are computed where a certificate needs them.
    """

    direction: Vector
    dots: Tensor | None = None  # (Q, m): <x_i^q, g^q>
    squares: Tensor | None = None  # (Q,): ||g^q||^2
    reference_dots: Tensor | None = None  # (Q, m): <x_i^q, r^q>
    projection: Projection | None = None  # how the rule met its targets, if it has any
    look_ahead: float = 0.0  # how many steps ahead clients should start, if the rule advises it
    averages: Tensor | None = None  # (m,): the weights, if the direction is their average

    def scaled(self, cohort: Cohort, factors: Tensor) -> Outcome:
        """Return f[q] g^q with its products."""
        return replace(
            self,
            direction=cohort.scaled(self.direction, factors),
            dots=None if self.dots is None else self.dots * factors.unsqueeze(-1),
            squares=None if self.squares is None else self.squares * factors.square(),
        )

    def resized(self, cohort: Cohort, length: Length) -> Outcome:
        """Return the direction with another length, and its targets in the same measure."""
        if length == "own":
            return self
        factors = length_factors(cohort, self.direction, self.dots, length)
        found, projection = self.scaled(cohort, factors), self.projection
        if projection is None or len(projection.norm) != len(factors):
            return found
        return replace(found, projection=projection.scaled(factors))

    def products(self, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """<x_i^q, g^q> (Q, m) and ||g^q||^2 (Q,), computed now if the rule has not."""
        dots, squares = self.dots, self.squares
        return (
            cohort.dots(self.direction) if dots is None else dots,
            cohort.lengths(self.direction).square() if squares is None else squares,
        )


@dataclass(frozen=True)
class Step:
    """g_t with theta_{t+1} = theta_t - eta_g g_t, and what it does to every client.

    ``look_ahead`` is the number of such steps ahead of theta_{t+1} at which clients should start.
    ``shares`` are the weights of the clients that a guard left in the round, None without a guard.
    """

    direction: Any
    certificate: Certificate | None
    look_ahead: float = 0.0
    shares: Mapping[ClientId, float] | None = None


class Aggregator(ABC):
    """A rule that turns a round's client updates into one direction.

    A subclass implements ``direction`` and, if it remembers anything between rounds, keeps that in
    ``self.memory``: a dictionary of tensors and plain values that it *replaces* and never changes
    in place. This class checks the input, makes certificates, saves and restores the memory, and
    leaves the state untouched when a round fails.

    ``nonfinite`` says what happens to a client whose update or report holds NaN or Inf:
    ``"raise"``, or ``"drop"`` it and renormalise the weights over the others. ``certify=False``
    saves the certificate's O(m d) for rules that do not build Gram matrices anyway. ``length`` is
    the rule's ``"own"`` or one of :mod:`fedcraft.aggregators.lengths`.
    """

    needs: frozenset[str] = frozenset()
    """What the rule needs beyond updates and weights: ``losses``, ``steps``, ``client_lr``."""

    sends: frozenset[str] = frozenset()
    """The names of ``sent``."""

    def __init__(
        self, *, nonfinite: NonFinite = "raise", certify: bool = True, length: Length = "own"
    ) -> None:
        require(nonfinite in ("raise", "drop"), "nonfinite", "'raise' or 'drop'", nonfinite)
        require(length in get_args(Length), "length", f"one of {get_args(Length)}", length)
        self.length: Length = length
        self.nonfinite = nonfinite
        self.certify = certify
        self.memory: State = {}
        self.guard: Guard | None = None
        self.context: RoundContext | None = None
        """The model, the round and the rates, while a round loop calls the rule."""

    @property
    def sent(self) -> Mapping[str, Tensor]:
        """What clients receive beside the model in the next round; most rules send nothing."""
        return {}

    def population(self, given: int | None = None) -> int | None:
        """Return the number of all clients: ``given``, or the run's, or None if it is unknown."""
        return given if given is not None or self.context is None else self.context.clients

    @abstractmethod
    def direction(self, cohort: Cohort) -> Outcome:
        """Apply the rule to a checked cohort."""

    def guarded(self, guard: Guard) -> Self:
        """Let a guard decide, before every round, which clients this rule sees; return the rule."""
        require(isinstance(guard, Guard), "guard", "a guard, such as guard('default')", guard)
        self.guard = guard
        return self

    def aggregate(
        self,
        updates: ArrayLike,
        *,
        weights: Numbers = None,
        layers: object = None,
        client_ids: Sequence[ClientId] | None = None,
        losses: Numbers = None,
        steps: Numbers = None,
        client_lr: float | None = None,
    ) -> Step:
        """Aggregate one round.

        ``updates`` (m, d) holds g_i = theta_t - theta_i in its rows; ``weights`` are data sizes
        (equal if left out or all zero); ``layers`` a Layout, sizes or slices (one layer if left
        out); ``losses`` the clients' mean losses *before* training; ``steps`` their numbers of
        local steps; ``client_lr`` the client rate of this round. The direction has the kind,
        dtype and device of ``updates``; for plain lists it is a float64 array. If anything is
        wrong, an error is raised and the aggregator's state is as it was.
        """
        given = RoundInput(weights, layers, client_ids, losses, steps, client_lr)
        cohort = read_cohort(updates, given, drop_nonfinite=self.nonfinite == "drop")
        step = self.aggregate_cohort(cohort)
        if isinstance(updates, Tensor | Updates):
            return step
        return replace(step, direction=step.direction.numpy())

    def aggregate_cohort(self, cohort: Cohort) -> Step:
        """Aggregate a cohort that has passed its checks; leaves the state as it was on failure."""
        self._check(cohort)
        remembered = self.state_dict()
        try:
            seen = Screening(cohort) if self.guard is None else self.guard.screen(cohort)
            step = self.step(seen.cohort)
            if self.guard is not None:
                known = self._known_products(seen.cohort, step)
                self.guard.after(cohort, step.direction, known)
        except BaseException:
            self.load_state_dict(remembered)
            raise
        return _guarded(step, cohort, seen)

    def step(self, cohort: Cohort) -> Step:
        """Return the rule's step for the clients that it sees."""
        found = self.direction(cohort)
        self.memory = {**self.memory, "dimension": cohort.dimension}
        outcome = found.resized(cohort, self.length)
        if not self.certify:
            return Step(outcome.direction, None, outcome.look_ahead)
        certificate = certify(
            cohort,
            *outcome.products(cohort),
            reference_dots=outcome.reference_dots,
            projection=outcome.projection,
        )
        # A loop says when it wants them; otherwise they are there if they cost nothing.
        context = self.context
        if cohort.knows_grams if context is None else context.measures_clients:
            certificate = replace(certificate, products=_products(cohort, found))
        return Step(outcome.direction, certificate, outcome.look_ahead)

    def state_dict(self) -> State:
        """Return what the rule remembers: tensors and plain values, safe to save."""
        state = {**self.memory, "rule": type(self).__name__}
        return state if self.guard is None else {**state, "guard": self.guard.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; the next step is the one the saved rule would have made."""
        found = state.get("rule")
        if found != type(self).__name__:
            raise StateError(f"state: expected one of {type(self).__name__}, found one of {found}")
        if self.guard is not None:
            self.guard.load_state_dict(state.get("guard", {}))
        self.memory = {key: value for key, value in state.items() if key not in ("rule", "guard")}

    def reset(self) -> None:
        """Forget every earlier round."""
        self.memory = {}
        if self.guard is not None:
            self.guard.memory = {}

    def _known_products(self, cohort: Cohort, step: Step) -> dict[ClientId, float]:
        """<x_i, g> of the clients that the rule saw, if they have been computed."""
        certificate = step.certificate
        # A wrapper's step may differ from the one that was certified.
        if certificate is None or type(self).step is not Aggregator.step:
            return {}
        along = certificate.whole.alignment * cohort.square_norms.sum(0).sqrt()
        return dict(zip(cohort.client_ids, along.tolist(), strict=True))

    def _check(self, cohort: Cohort) -> None:
        for name in sorted(self.needs):
            if getattr(cohort, name) is None:
                raise InputError(f"{name}: {type(self).__name__} needs it, but it was not given")
        expected = self.memory.get("dimension")
        if expected is not None and expected != cohort.dimension:
            raise InputError(
                f"updates: earlier rounds had {expected} coordinates, this one has "
                f"{cohort.dimension}; call reset() to start with another model"
            )


def _products(cohort: Cohort, outcome: Outcome) -> RoundProducts:
    """Collect the products from which the clients of a round are measured."""
    return RoundProducts(
        cohort.client_ids,
        cohort.gram,
        torch.arange(cohort.size),
        cohort.weights,
        cohort.grams,
        *outcome.products(cohort),
        outcome.reference_dots,
        outcome.averages,
        outcome.projection is not None and len(outcome.projection.rank) == len(cohort.layout),
        cohort.dtype,
    )


def _guarded(step: Step, cohort: Cohort, seen: Screening) -> Step:
    """Return the step with what a guard did: who was left out, and what the others weigh."""
    if seen.cohort is cohort:
        return step
    kept = dict(zip(seen.cohort.client_ids, seen.cohort.weights.tolist(), strict=True))
    step = replace(step, shares=kept)
    certificate = step.certificate
    if certificate is None or not seen.left_out:
        return step
    products = certificate.products
    if products is not None:
        rows = [row for row, client in enumerate(cohort.client_ids) if client in kept]
        products = replace(
            products, client_ids=cohort.client_ids, gram=cohort.gram, kept=torch.tensor(rows)
        )
    certificate = replace(certificate, left_out=seen.left_out, products=products)
    return replace(step, certificate=certificate)
