"""The agreement filter, and a record of how every client answers the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.client_memory import grown, known_clients
from fedcraft.aggregators.cohort import Cohort, Vector
from fedcraft.aggregators.guards.base import Judgement
from fedcraft.aggregators.guards.cosine import Cosine, Demand, median_and_spread
from fedcraft.errors import require
from fedcraft.updates import ClientId

_FEWEST = 3  # answers, below which no median says what is usual
_CLEAR = 0.5  # a record of more than half a round, in favour or against
_MOST = 4.0  # rounds that a record counts, so that it can change


class Answers(Cosine):
    """Ask whether clients answer a step g_t as honest ones do, and filter by agreement besides::

        d_i = <x_i(t+1) - x_i(t), g_t> / sqrt(||x_i(t+1)|| ||x_i(t)||)

    says how a client of both rounds changed its update after the step. Gradients of a convex loss
    are monotone: whoever is moved along -g asks for less of g afterwards, d_i < 0. This needs no
    agreement with anybody, so it also holds where every client has labels of its own, and a client
    that sends minus its update has d_i > 0. Networks are not convex, so the guard asks what is
    usual, the median u of -d_i. A round counts only if u exceeds the spread of the d_i: where steps
    hardly change updates, chance decides the signs.

    A client's record is the sum of -d_i / u, limited to [-1, 1], over rounds, and stays within
    [-4, 4], so that it can change. A record below -1/2 leaves the client out; it is measured all
    the same, and can recover. Agreement counts as in the guard ``cosine``, with two exceptions:

    * a client with a record above 1/2 is left out only below min(``strong``, median - ``sure`` s),
      and has its full weight even if others send nearly the same;
    * nobody is left out above ``strong`` in the first round, nor in a round of which half took part
      in the round before: answers will decide there, and rare data may disagree mildly.

    A liar that knows this guard can answer well: send what it likes, and less of each step taken.

    A federation that draws other clients every round is judged as by ``cosine``, but in the first.
    Remembers the last step and two numbers per client. Cost O(m d) beyond that of ``cosine``.
    """

    def __init__(self, *, strong: float = -0.3, sure: float = 3.0, **options: Any) -> None:
        super().__init__(**options)
        require(-1 <= strong <= 1, "strong", "a cosine", strong)
        require(sure >= 0, "sure", "a number >= 0", sure)
        self.strong, self.sure = strong, sure

    def judge(self, cohort: Cohort) -> Judgement:
        self._update(cohort)
        found = super().judge(cohort)
        if found.factors is None:
            return found
        return replace(found, factors=torch.where(self._well(cohort), 1, found.factors))

    def after(self, cohort: Cohort, direction: Vector, known: Mapping[ClientId, float]) -> None:
        clients, places = known_clients(self.memory, cohort.client_ids)
        self.memory = {
            **self.memory,
            "clients": clients,
            "records": grown(self.memory.get("records"), len(clients)),
            "step": direction.clone(),
            "latest": places,
            "along": _along(cohort, direction, known),
            "lengths": _lengths(cohort),
        }

    def _objections(self, cohort: Cohort, norms: Tensor, longest: float) -> list[str]:
        reasons = super()._objections(cohort, norms, longest)
        for row, record in enumerate(self._records(cohort).tolist()):
            if record < -_CLEAR and not reasons[row]:
                reasons[row] = f"answers the steps the wrong way, record {record:+.1f}"
        return reasons

    def demand(self, cohort: Cohort) -> Demand:
        usual, well = super().demand(cohort), self._well(cohort)
        patient = well | self._will_answer(cohort)
        return Demand(
            torch.where(patient, usual.least.clamp(max=self.strong), usual.least),
            torch.where(well, usual.spread.clamp(min=self.sure), usual.spread),
        )

    def _will_answer(self, cohort: Cohort) -> bool:
        """Tell whether most clients of this round are likely to be there in the next."""
        return "step" not in self.memory or 2 * len(self._both(cohort)[0]) >= cohort.size

    def _update(self, cohort: Cohort) -> None:
        """Add this round's answers to the records."""
        known, places = known_clients(self.memory, cohort.client_ids)
        records = grown(self.memory.get("records"), len(known))
        now, before = self._both(cohort)
        if len(now) >= _FEWEST:
            answers = self._answers(cohort, now, before)
            usual, spread = median_and_spread(-answers, torch.ones_like(answers))
            if usual > spread:
                found = records[places[now]] + (-answers / usual).clamp(-1, 1)
                records[places[now]] = found.clamp(-_MOST, _MOST)
        self.memory = {**self.memory, "clients": known, "records": records}

    def _records(self, cohort: Cohort) -> Tensor:
        found: Tensor = self.memory["records"][known_clients(self.memory, cohort.client_ids)[1]]
        return found

    def _well(self, cohort: Cohort) -> Tensor:
        """Mark the clients that have answered well."""
        return self._records(cohort) > _CLEAR

    def _both(self, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Return the clients that took part in the last round too: their rows now and then."""
        places = known_clients(self.memory, cohort.client_ids)[1]
        latest = self.memory.get("latest", places[:0])
        now, before = torch.nonzero(places.unsqueeze(-1) == latest, as_tuple=True)
        return now, before

    def _answers(self, cohort: Cohort, now: Tensor, before: Tensor) -> Tensor:
        """d_i of these clients."""
        change = _dots(cohort, self.memory["step"])[now] - self.memory["along"][before]
        lengths = (_lengths(cohort)[now] * self.memory["lengths"][before]).sqrt()
        return torch.where(lengths > 0, change / lengths.clamp(min=1e-300), 0)


def _along(cohort: Cohort, direction: Vector, known: Mapping[ClientId, float]) -> Tensor:
    """<x_i, g>, (m,): one more pass over those updates only whose products are not known."""
    products = [known.get(client, torch.nan) for client in cohort.client_ids]
    found = torch.tensor(products, dtype=torch.float64)
    unknown = torch.nonzero(found.isnan()).flatten()
    if len(unknown):
        rest = cohort if len(unknown) == cohort.size else cohort.select(unknown)
        found[unknown] = _dots(rest, direction)
    return found


def _dots(cohort: Cohort, vector: Vector) -> Tensor:
    """<x_i, v>, (m,)."""
    return cohort.dots(vector).sum(0)


def _lengths(cohort: Cohort) -> Tensor:
    """||x_i||, (m,), from the Gram matrices that this guard needs anyway."""
    return cohort.gram.diagonal().clamp(min=0).sqrt()
