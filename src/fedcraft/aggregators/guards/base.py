"""The contract of every guard: which clients of a round a rule sees, and how much they count."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort, Vector
from fedcraft.aggregators.mixed_cohort import MixedCohort
from fedcraft.errors import StateError, require
from fedcraft.linalg import rounding, shares, unit_grams
from fedcraft.updates import ClientId

CAP = 3.0
"""A client's claimed size counts at most this many times the cohort's median."""

Scale = Literal["raw", "unit", "layers"]


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a guard makes of the m clients of a round."""

    reasons: tuple[str, ...] = ()  # why a client is left out, "" for one that stays; () if all do
    factors: Tensor | None = None  # (m,): on the clients' weights
    mixing: Tensor | None = None  # (m, m): the rows as mixtures of the clients' updates


@dataclass(frozen=True, eq=False)
class Screening:
    """The cohort that a rule sees, and the clients that were left out, each with the reason."""

    cohort: Cohort
    left_out: Mapping[ClientId, str] = field(default_factory=dict)


class Guard(ABC):
    """A step before any rule, against clients that lie: it leaves clients out, or limits them.

    A subclass implements ``judge``, which sees the same three products as a rule does (see
    :class:`fedcraft.aggregators.Cohort`), so that a guard also works where the rows are in files
    or secret. What it remembers between rounds it keeps in ``self.memory``, like a rule.

    ``cap``: sizes that clients claim count at most ``cap`` times the cohort's median, losses
    likewise; None trusts them. A guard never leaves out everybody: if it finds a reason against
    every client, all of them stay, and ``judge`` may shorten their updates instead (``mixing``).
    """

    def __init__(self, *, cap: float | None = CAP) -> None:
        require(cap is None or cap >= 1, "cap", "a number of at least 1, or None", cap)
        self.cap = cap
        self.memory: dict[str, Any] = {}

    @abstractmethod
    def judge(self, cohort: Cohort) -> Judgement:
        """Judge a cohort of at least two clients; their claims are raw, see ``capped``."""

    def judge_alone(self, cohort: Cohort) -> Judgement:
        """Judge a client that has no others beside it; nothing speaks against it here."""
        return Judgement()

    def screen(self, cohort: Cohort) -> Screening:
        """Return what the rule sees of a round; the cohort itself if nothing changes."""
        judgement = self.judge(cohort) if cohort.size > 1 else self.judge_alone(cohort)
        capped = self.capped(cohort)  # after the judgement, so that it shares its products
        reasons = judgement.reasons if "" in judgement.reasons else ("",) * cohort.size
        left_out = {i: why for i, why in zip(cohort.client_ids, reasons, strict=True) if why}
        if judgement.factors is not None:
            capped = _claiming(capped, weights=shares(capped.weights * judgement.factors))
        if not left_out and judgement.mixing is None:
            return Screening(capped)
        kept = torch.tensor([row for row, why in enumerate(reasons) if not why])
        return Screening(_view(capped, judgement.mixing, kept), left_out)

    def capped(self, cohort: Cohort) -> Cohort:
        """Return the cohort with the sizes and losses that count."""
        if self.cap is None:
            return cohort
        claims = {"weights": cohort.weights}
        if cohort.losses is not None:
            claims["losses"] = cohort.losses
        counted = {name: _at_most(given, self.cap) for name, given in claims.items()}
        if all(map(torch.equal, claims.values(), counted.values())):
            return cohort
        return _claiming(cohort, **counted | {"weights": shares(counted["weights"])})

    def after(self, cohort: Cohort, direction: Vector, known: Mapping[ClientId, float]) -> None:
        """Remember the step g that the rule made; ``cohort`` includes the clients left out.

        ``known`` has the products <x_i, g> that the rule has computed anyway, by client.
        """
        return

    def state_dict(self) -> dict[str, Any]:
        """Return what the guard remembers: tensors and plain values, safe to save."""
        return {**self.memory, "guard": type(self).__name__}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        if state.get("guard") != type(self).__name__:
            raise StateError(
                f"state: expected one of the guard {type(self).__name__}, found one of "
                f"{state.get('guard', 'no guard')}"
            )
        self.memory = {key: value for key, value in state.items() if key != "guard"}


def kernel(cohort: Cohort, scale: Scale) -> Tensor:
    """Return the (m, m) products that a guard judges by.

    ``"raw"``: of the updates; ``"unit"``: of the updates at length one, that is their cosines;
    ``"layers"``: the mean over the layers of the cosines by layer. The last two do not depend on
    how long an update is; the last one counts small layers as much as large ones.
    """
    if scale == "raw":
        return cohort.gram
    if scale == "unit":
        return unit_grams(cohort.gram)[0]
    return unit_grams(cohort.grams)[0].mean(0)


def check_scale(scale: Scale) -> Scale:
    """Return ``scale`` if it is one."""
    require(scale in get_args(Scale), "scale", f"one of {get_args(Scale)}", scale)
    return scale


def square_distances(products: Tensor) -> Tensor:
    """||x_i - x_j||^2 from the products <x_i, x_j>, (m, m), exactly zero on the diagonal."""
    squares = products.diagonal()
    found = (squares.unsqueeze(-1) + squares - 2 * products).clamp(min=0)
    return found.fill_diagonal_(0)


def slack(cohort: Cohort, products: Tensor) -> float:
    """Return the difference below which two products of usual rows count as equal."""
    # The median: a single huge row must not make all differences look like rounding.
    return 4 * rounding(cohort.dtype) * float(products.diagonal().quantile(0.5))


def usual_claim(claims: Tensor) -> float:
    """Return the median of the claims that are above zero; zero if there are none."""
    positive = claims[claims > 0]
    return float(positive.quantile(0.5)) if len(positive) else 0.0


def _at_most(claims: Tensor, cap: float) -> Tensor:
    """Limit claims to ``cap`` times the usual one."""
    usual = usual_claim(claims)
    return claims if usual == 0 else claims.clamp(max=cap * usual)


def _claiming(cohort: Cohort, **claims: Tensor) -> Cohort:
    """Return the same rows with other claims; the products that were computed are kept."""
    twin = copy.copy(cohort)
    vars(twin).update(claims)  # dataclasses.replace would forget the products
    return twin


@dataclass(frozen=True, kw_only=True)
class Selection(MixedCohort):
    """Some rows of another cohort: their Gram matrices need no product with the mixing."""

    @cached_property
    def grams(self) -> Tensor:
        rows = self.mixing.argmax(dim=1)
        return self.inner.grams[:, rows][:, :, rows]

    @property
    def knows_grams(self) -> bool:
        return self.inner.knows_grams


def _view(cohort: Cohort, mixing: Tensor | None, kept: Tensor) -> Cohort:
    facts = {fact.name: getattr(cohort, fact.name) for fact in fields(Cohort)}
    unit = torch.eye(cohort.size, dtype=torch.float64)
    if mixing is None:
        return Selection(**facts, inner=cohort, mixing=unit).select(kept)
    whole = MixedCohort(**facts, inner=cohort, mixing=mixing)
    return whole if len(kept) == cohort.size else whole.select(kept)
