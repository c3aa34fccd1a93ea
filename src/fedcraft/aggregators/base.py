"""The contract of every aggregation rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedcraft.aggregators.certificate import Certificate, Correction, certify
from fedcraft.aggregators.cohort import ArrayLike, Cohort, Numbers, RoundInput, Vector
from fedcraft.errors import InputError, StateError, require
from fedcraft.updates import ClientId

__all__ = ["Aggregator", "Outcome", "State", "Step"]

State = dict[str, Any]
NonFinite = Literal["raise", "drop"]


@dataclass(frozen=True)
class Outcome:
    """What a rule returns: its direction, and what it learnt about the geometry on the way."""

    direction: Vector
    dots: Tensor | None = None  # (Q, m): <x_i^q, g^q> where the rule has them for free
    square_lengths: Tensor | None = None  # (Q,): ||g^q||^2, likewise
    reference_dots: Tensor | None = None
    correction: Correction | None = None


@dataclass(frozen=True)
class Step:
    """g_t with theta_{t+1} = theta_t - eta_g g_t, and what it does to every client."""

    direction: Any
    certificate: Certificate | None


class Aggregator(ABC):
    """A rule that turns a round's client updates into one direction.

    A new rule implements ``_direction`` and, if it remembers anything between rounds, keeps that in
    ``self._memory``: a dictionary of tensors and plain values that is *replaced*, never changed in
    place. Checks, certificates, saving and restoring, and leaving the state untouched when a round
    fails, come from here.

    ``nonfinite`` says what happens to a client whose update or report holds NaN or Inf:
    ``"raise"``, or ``"drop"`` it and renormalise the weights over the others. ``certify=False``
    saves the certificate's O(m d) for rules that do not build Gram matrices anyway.
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, *, nonfinite: NonFinite = "raise", certify: bool = True) -> None:
        require(nonfinite in ("raise", "drop"), "nonfinite", "'raise' or 'drop'", nonfinite)
        self.nonfinite = nonfinite
        self.certify = certify
        self._memory: State = {}

    @abstractmethod
    def _direction(self, cohort: Cohort) -> Outcome:
        """Apply the rule to a checked cohort."""

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
        (equal if left out); ``layers`` a Layout, sizes or slices (one layer if left out);
        ``losses`` the clients' mean losses *before* training; ``steps`` their numbers of local
        steps; ``client_lr`` the client rate of this round. The direction comes back in the kind,
        dtype and device of ``updates``. If anything is wrong, an error is raised and the
        aggregator's state is as it was.
        """
        given = RoundInput(updates, weights, layers, client_ids, losses, steps, client_lr)
        cohort = given.check(drop_nonfinite=self.nonfinite == "drop")
        step = self.aggregate_cohort(cohort)
        return Step(_like(step.direction, updates), step.certificate)

    def aggregate_cohort(self, cohort: Cohort) -> Step:
        """Aggregate a cohort that has passed its checks; leaves the state as it was on failure."""
        self._check_needs(cohort)
        self._check_memory(cohort)
        remembered = self._memory
        try:
            outcome = self._direction(cohort)
            certificate = self._certificate(cohort, outcome) if self.certify else None
        except BaseException:
            self._memory = remembered
            raise
        self._memory = {**self._memory, "dimension": cohort.dimension}
        return Step(outcome.direction, certificate)

    def state_dict(self) -> State:
        """Return what the rule remembers: tensors and plain values, safe to save."""
        return {**self._memory, "rule": type(self).__name__}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; the next step is the one the saved rule would have made."""
        found = state.get("rule")
        if found != type(self).__name__:
            raise StateError(f"state: expected one of {type(self).__name__}, found one of {found}")
        self._memory = {key: value for key, value in state.items() if key != "rule"}

    def reset(self) -> None:
        """Forget every earlier round."""
        self._memory = {}

    def _certificate(self, cohort: Cohort, outcome: Outcome) -> Certificate:
        direction, dots, square = outcome.direction, outcome.dots, outcome.square_lengths
        return certify(
            cohort,
            cohort.dots(direction) if dots is None else dots,
            cohort.lengths(direction).square() if square is None else square,
            reference_dots=outcome.reference_dots,
            correction=outcome.correction,
        )

    def _check_needs(self, cohort: Cohort) -> None:
        for name in sorted(self.needs):
            if getattr(cohort, name) is None:
                raise InputError(f"{name}: {type(self).__name__} needs it and it was not given")

    def _check_memory(self, cohort: Cohort) -> None:
        if cohort.in_memory and any(map(lies_in_a_file, self._memory.values())):
            raise StateError(
                "state: the last round was aggregated from files and its step lies there; go on "
                "with aggregate_files, or call reset() to start anew"
            )
        expected = self._memory.get("dimension")
        if expected is not None and expected != cohort.dimension:
            raise InputError(
                f"updates: earlier rounds had {expected} coordinates, this one has "
                f"{cohort.dimension}; call reset() to start with another model"
            )


def lies_in_a_file(value: object) -> TypeGuard[Mapping[str, str]]:
    """Tell whether a rule's memory is a vector on disk, by name and digest (``outofcore``)."""
    return isinstance(value, Mapping) and set(value) == {"safetensors", "digest"}


def _like(direction: Tensor, updates: ArrayLike) -> Tensor | npt.NDArray[np.floating]:
    return direction.numpy() if isinstance(updates, np.ndarray) else direction
