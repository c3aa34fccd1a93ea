"""FedMDFG: a fair common descent direction for the whole model, with a line search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedcraft.aggregators.base import Aggregator, Outcome, State
from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.combination import Combination
from fedcraft.aggregators.even_losses import even_losses, rescale_factor, with_care
from fedcraft.aggregators.uploads import Uploads, earlier_part, joint_grams, precise_joint_gram
from fedcraft.errors import InputError, StateError, require
from fedcraft.linalg.minnorm import min_norm_weights
from fedcraft.updates import ClientId

_SUFFICIENT = 1e-4
_TINY = torch.finfo(torch.float64).tiny
_Shortest = tuple[Tensor, Tensor, Tensor, bool]  # corners, their Gram matrix, weights of d, d = 0


class FedMDFG(Aggregator):
    """Multi-objective descent with fairness guidance (Pan et al. 2023).

    With all updates brought to their mean length mu, d is the point of least norm in the hull of

    * the clients' rows,
    * the fair row sum_i h_i g_i, where h turns the losses L towards equal ones: only if the angle
      between L and (1, ..., 1) exceeds ``theta_deg``, or some but not all clients have a larger
      loss than expected from their earlier rounds,
    * the rows of last round's clients that are absent now,

    and g_t = d ||mean_i g_i|| / ||d||. ``eps`` is the released code's 1e-6: shorter updates are
    left out, and a row of length n enters the hull with n^2 / (n + eps). eps = 0 makes the rule
    scale-equivariant.

    The paper's step length is searched: see ``line_search``, which needs the clients' losses at
    trial points. A caller that cannot evaluate them uses g_t unchanged, with its own rate.

    * ``evenness``: with the fair row in use a trial must bring the losses closer to equal: their
      cosine with (1, ..., 1) must grow (``"paper"``). The released code divides the old cosine by
      the sum of the losses instead of their norm, so that its test is nearly always passed
      (``"code"``, the default, as in all published runs).
    * ``armijo``: every client's loss must fall by 1e-4 length <g_i, g_t> (``"paper"``). The
      released code has the sign of that bound the wrong way round: a trial passes even where every
      loss rises, if by no more than the bound (``"code"``, the default).

    Remembers last round's rows and two numbers for every client seen. Cost O(m^2 d + m^3).
    """

    needs = frozenset({"losses"})
    wants_line_search = True

    def __init__(
        self,
        *,
        theta_deg: float = 11.25,
        s: int = 5,
        eps: float = 1e-6,
        evenness: Literal["code", "paper"] = "code",
        armijo: Literal["code", "paper"] = "code",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require(0 < theta_deg < 90, "theta_deg", "an angle between 0 and 90 degrees", theta_deg)
        require(s >= 0 and s == int(s), "s", "a whole number >= 0", s)
        require(eps >= 0, "eps", "a number >= 0", eps)
        require(evenness in ("code", "paper"), "evenness", "'code' or 'paper'", evenness)
        require(armijo in ("code", "paper"), "armijo", "'code' or 'paper'", armijo)
        self.theta_deg = theta_deg
        self.s = int(s)
        self.eps = eps
        self.evenness = evenness
        self.armijo = armijo

    @property
    def searched_clients(self) -> tuple[ClientId, ...]:
        """The clients whose losses ``line_search`` asks for, in its order."""
        return tuple(self.memory.get("search", {}).get("clients", ()))

    def direction(self, cohort: Cohort) -> Outcome:
        books, forced = self._expectations(cohort)
        self.memory = {**self.memory, **books, "search": {}}
        norms = cohort.gram.diagonal().clamp(min=0).sqrt()
        live = torch.nonzero(norms > self.eps).flatten()
        if len(live) == 0:
            self.memory = Uploads.forgotten(self.memory)  # no row comes from the last round
            return Outcome(cohort.combine(torch.zeros_like(norms)))
        even = norms[live].mean() / norms[live]  # brings every live row to length mu
        fair = self._fair_row(cast(Tensor, cohort.losses)[live], forced)
        absent = Uploads.load(self.memory).without(cohort.client_ids).rows
        hull = _Hull(cohort, live, even, fair, absent, self.eps)
        point, factor = hull.point()
        self._remember(hull, point, factor)
        return Outcome(point.vector(factor))

    def _fair_row(self, losses: Tensor, forced: bool) -> Tensor | None:
        length = torch.linalg.vector_norm(losses)
        if length == 0:
            return None
        cosine = float(losses.sum() / (length * len(losses) ** 0.5))
        angle = math.degrees(math.acos(min(1.0, max(-1.0, cosine))))
        return even_losses(losses) if forced or angle > self.theta_deg else None

    def _expectations(self, cohort: Cohort) -> tuple[State, bool]:
        """Update each client's expected loss; return whether some, but not all, exceeded it."""
        columns = (self.memory.get(name, ()) for name in ("seen", "joined", "expected"))
        known = {client: (count, mean) for client, count, mean in zip(*columns, strict=True)}
        worse, losses = 0, cast(Tensor, cohort.losses).tolist()
        for client, loss in zip(cohort.client_ids, losses, strict=True):
            count, mean = known.get(client, (0, loss))
            if loss <= mean:
                mean = (mean * count + loss) / (count + 1)
            else:
                worse += 1
            known[client] = count + 1, mean
        books = {
            "seen": list(known),
            "joined": [count for count, _ in known.values()],
            "expected": [mean for _, mean in known.values()],
        }
        return books, 0 < worse < cohort.size

    def _remember(self, hull: _Hull, point: Combination, factor: float) -> None:
        cohort, live = hull.cohort, hull.live
        ids = [cohort.client_ids[index] for index in live.tolist()]
        search = {
            "clients": ids,
            "losses": cast(Tensor, cohort.losses)[live].tolist(),
            "slopes": (factor * hull.even * point.dots().sum(0)[live]).tolist(),
            "fair": hull.fair is not None,
            "changed": hull.absent is not None,
            "scale": factor,
        }
        stored = Uploads.received(ids, hull.even_rows(), 0).dump()
        self.memory = {**self.memory, **stored, "search": search}

    def line_search(self, evaluate: Callable[[float], Sequence[float]], rate: float) -> float:
        """Return the step length for the last direction, found by halving.

        ``evaluate(length)`` gives the losses of ``searched_clients``, in that order, at
        theta - length g_t. The search starts at 2^s ``rate``, or at ``rate`` when some of last
        round's clients are absent, and ends at 2^-s ``rate`` ||d|| / ||g_t||. A length is accepted
        when no client's loss rises by more than 1e-4 length <g_i, g_t> (with ``armijo="paper"``:
        when every loss falls by at least that) and, if the fair row was in use, the losses are
        more even. If none is, the first that lowers the total loss is taken, else the one with the
        least total loss.
        """
        if "search" not in self.memory:
            raise StateError(
                "line_search: aggregate a round first, then search along its direction"
            )
        search = {**self.memory["search"]}
        if not search or search["scale"] == 0:
            return rate
        del search["clients"]
        trial = _Trial(**search, evenness=self.evenness, armijo=self.armijo)
        return _halve(trial, evaluate, rate, self.s)


@dataclass(frozen=True)
class _Hull:
    """The corners of this round's hull, as combinations of live and absent rows."""

    cohort: Cohort
    live: Tensor
    even: Tensor
    fair: Tensor | None
    absent: Tensor | None
    eps: float

    def point(self) -> tuple[Combination, float]:
        """Return d and the factor that gives it the length of the mean row."""
        cohort = self.cohort
        corners, kernel, weights, is_zero = with_care(
            cohort.dtype,
            joint_grams(cohort, self.absent).sum(0),
            self._precise_gram,
            self._shortest,
        )
        mixed = weights @ corners
        coefficients = torch.zeros_like(cohort.weights)
        coefficients[self.live] = mixed[: len(self.live)]
        others = mixed[len(self.live) :].unsqueeze(0)
        rest = earlier_part(self.absent, others, [slice(None)])
        point = Combination.of(cohort, coefficients, rest)
        if is_zero:
            return point, 0.0
        length = point.length()
        cosines = kernel @ weights / (kernel.diagonal().clamp(min=_TINY).sqrt() * length)
        return point, rescale_factor(length, self._mean().length(), cosines)

    def even_rows(self) -> Tensor:
        """The live rows at their mean length: a new matrix."""
        rows = self.cohort.matrix
        if len(self.live) < len(rows):
            rows = rows[self.live.to(rows.device)]
        return rows * self.even.unsqueeze(-1).to(rows)

    def _mean(self) -> Combination:
        coefficients = torch.zeros_like(self.cohort.weights)
        coefficients[self.live] = self.even / len(self.live)
        return Combination.of(self.cohort, coefficients)

    def _shortest(self, gram: Tensor, shortest: float) -> tuple[_Shortest, bool]:
        corners, kernel = self._corners(gram)
        weights = min_norm_weights(kernel)
        square = float(weights @ kernel @ weights / kernel.diagonal().max())
        return (corners, kernel, weights, square <= shortest), square > shortest

    def _precise_gram(self) -> Tensor:
        layers = range(len(self.cohort.layout))
        grams = [precise_joint_gram(self.cohort, self.absent, layer) for layer in layers]
        return torch.stack(grams).sum(0)

    def _corners(self, gram: Tensor) -> tuple[Tensor, Tensor]:
        """Return the corners on (live rows, absent rows), and their Gram matrix."""
        used = torch.cat([self.live, torch.arange(self.cohort.size, len(gram))])
        gram = gram[used][:, used]
        scale = torch.ones(len(used), dtype=torch.float64)
        scale[: len(self.live)] = self.even
        norms = scale * gram.diagonal().clamp(min=0).sqrt()
        corners = torch.diag(scale * norms / (norms + self.eps).clamp(min=_TINY))
        if self.fair is not None:
            corners = torch.cat([corners, (self.fair @ corners[: len(self.live)]).unsqueeze(0)])
        return corners, corners @ gram @ corners.T


@dataclass(frozen=True)
class _Trial:
    """The criteria that the losses of a trial must meet."""

    losses: list[float]
    slopes: list[float]
    fair: bool
    changed: bool
    scale: float
    evenness: str
    armijo: str

    def accepts(self, length: float, losses: npt.NDArray[np.float64]) -> bool:
        before = np.asarray(self.losses)
        wanted = _SUFFICIENT if self.armijo == "paper" else -_SUFFICIENT
        enough = before - losses >= wanted * length * np.asarray(self.slopes)
        if not self.fair:
            return bool(enough.all())
        old = before.sum() / np.linalg.norm(before) if self.evenness == "paper" else 1.0
        return bool(enough.all() and losses.sum() / np.linalg.norm(losses) > old)


def _halve(
    trial: _Trial, evaluate: Callable[[float], Sequence[float]], rate: float, halvings: int
) -> float:
    length = rate if trial.changed else 2.0**halvings * rate
    lengths, totals = [length], [math.inf]
    while length >= 0.5**halvings * rate / trial.scale:
        losses = np.asarray(evaluate(length), dtype=np.float64)
        if losses.shape != (len(trial.losses),):
            raise InputError(f"evaluate: expected {len(trial.losses)} losses, found {losses.shape}")
        if trial.accepts(length, losses):
            return length
        lengths.append(length)
        totals.append(float(losses.sum()) if np.isfinite(losses).all() else math.inf)
        length /= 2
    lower = [
        tried for tried, total in zip(lengths, totals, strict=True) if total < sum(trial.losses)
    ]
    return lower[0] if lower else lengths[int(np.argmin(totals))]
