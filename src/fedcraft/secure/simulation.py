"""Secure rounds in one process: the complete protocol, or its arithmetic alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedcraft.aggregators import Aggregator
from fedcraft.aggregators.base import Step
from fedcraft.aggregators.inputs import RoundInput
from fedcraft.secure.agreement import Message, RefusedError
from fedcraft.secure.client import SecureClient, scaled_rows
from fedcraft.secure.cohort import SecretCohort, aggregate_secretly
from fedcraft.secure.fixed_point import FixedPoint
from fedcraft.secure.limits import Limits
from fedcraft.secure.options import STAGES, Secure, Stage
from fedcraft.secure.primitives import digest
from fedcraft.secure.products import SecretProducts
from fedcraft.secure.server import (
    Fair,
    MaskedRound,
    Private,
    RoundFailed,
    SecretRound,
    SumGivenUp,
)
from fedcraft.secure.sketch import gram_from, sketch
from fedcraft.seeds import generator
from fedcraft.updates import ClientId, Layout


class LocalExchange:
    """Clients in this process. ``chances`` are probabilities of a drop-out by stage.

    A client that is lost stays lost for the round.
    """

    def __init__(
        self,
        updates: Tensor,
        clients: Sequence[ClientId],
        options: Secure,
        *,
        request: bytes,
        random: np.random.Generator,
    ) -> None:
        limits = Limits(options.most_share, options.sums, 2)
        self.clients = {client: SecureClient(limits) for client in clients}
        self._updates = dict(zip(clients, updates, strict=True))
        self._request = request
        self._random, self._chances = random, options.dropouts
        self.gone: set[ClientId] = set()

    def ask(
        self, stage: Stage, said: Message, private: Private
    ) -> Iterator[tuple[ClientId, Message]]:
        """Let the clients answer one after the other."""
        for client, mine in private.items():
            if self._random.random() < self._chances.get(stage, 0):
                self.gone.add(client)
            if client not in self.gone:
                try:
                    yield client, self.answer(stage, client, said, mine)
                except RefusedError:
                    self.gone.add(client)

    def answer(self, stage: Stage, client: ClientId, said: Message, mine: Message) -> Message:
        """Return one client's answer."""
        known = self.clients[client]
        if stage == "sketch":
            return known.sketch(said, mine, self._updates[client], self._request)
        return known.answer(stage, said, mine)


class ArithmeticRound:
    """The arithmetic of a secure round without keys and masks: nothing is hidden from anybody.

    Sketches, fixed point and drop-outs are those of the protocol, and so are the sums, bit for bit:
    masks cancel exactly. For studies of accuracy at scale.
    """

    def __init__(
        self,
        updates: Tensor,
        clients: Sequence[ClientId],
        sizes: Sequence[int],
        options: Secure,
        *,
        seed: bytes,
        random: np.random.Generator,
    ) -> None:
        self._random, self._options = random, options
        kept = list(range(len(clients)))
        for stage in STAGES[:3]:
            kept = self._present(stage, kept)
        if len(kept) < 2:
            raise RoundFailed(f"stage sketch: {len(kept)} good answers, and 2 are needed")
        self.clients, self.sizes = [clients[row] for row in kept], tuple(sizes)
        bound = float(options.bound or 0) if options.sums_only else 0.0
        self._units, self.norms = scaled_rows(updates[kept], sizes, bound)
        count, fold = options.sketch, options.fold
        if options.protocol == "exact" and not options.sums_only:
            self.cosines = gram_from(torch.split_with_sizes(self._units, list(sizes), dim=1))
        else:
            self.cosines = gram_from(sketch(self._units, sizes, seed, count=count, fold=fold))

    def dots(self, vector: Tensor, rows: Sequence[int]) -> dict[int, Tensor]:
        """See ``SecretRound``."""
        present = self._present("dots", rows)
        blocks = torch.split_with_sizes(self._units[present], list(self.sizes), dim=1)
        parts = torch.split_with_sizes(vector.to(torch.float32), list(self.sizes))
        pairs = zip(blocks, parts, strict=True)
        dots = torch.stack([b.to(torch.float64) @ p.to(torch.float64) for b, p in pairs])
        return {row: dots[:, at] for at, row in enumerate(present)}

    def sum(
        self,
        coefficients: Tensor,
        rows: Sequence[int],
        point: FixedPoint,
        fair: Fair | None = None,
    ) -> tuple[Tensor, list[int]]:
        """See ``SecretRound``."""
        present = self._present("sum", rows)
        if fair is not None and not fair(present):
            raise SumGivenUp(present)
        total = np.zeros(point.count, np.uint32)
        for row in present:
            total += point.encode(self._units[row], coefficients[:, row].tolist())
        holders = min(self._options.neighbours, len(self.clients) - 1) + 1
        confirmed = self._present("confirm", present)
        if len(self._present("unmask", confirmed)) <= self._options.threshold * holders:
            raise RoundFailed("stage unmask: too few answers; the round must be repeated")
        return point.decode(total), present

    def _present(self, stage: Stage, rows: Sequence[int]) -> list[int]:
        chance = self._options.dropouts.get(stage, 0.0)
        lucky = self._random.random(len(rows)) >= chance
        return [row for row, kept in zip(rows, lucky, strict=True) if kept]


@dataclass(frozen=True)
class SecureReport:
    """What happened in a secure round, for its row."""

    sums: int
    attempts: int
    lost: tuple[ClientId, ...]
    spread: tuple[str, ...]


def simulate_round(
    rule: Aggregator,
    updates: Tensor,
    layout: Layout,
    given: RoundInput,
    options: Secure,
    *,
    seed: int,
    index: int,
    model: Tensor,
) -> tuple[Step, SecureReport]:
    """Aggregate one round of a simulation; a round that loses too many clients is repeated."""
    clients = list(given.client_ids or range(len(updates)))
    for attempt in range(1, options.attempts + 1):
        random = generator(seed, "secure", index, attempt)
        try:
            round = _round(updates, clients, layout, options, random, model, index)
            products = SecretProducts(round, options)
            cohort = secret_cohort(products, round, layout, given, clients)
            step = aggregate_secretly(rule, cohort)
        except RoundFailed as error:
            failed = error
            continue
        used = set(step.certificate.client_ids) if step.certificate else products.summed()
        lost = tuple(client for client in clients if client not in used)
        spread = tuple(layout.names[layer] for layer in sorted(products.spread))
        return step, SecureReport(products.spent, attempt, lost, spread)
    raise failed


def secret_cohort(
    products: SecretProducts,
    round: SecretRound,
    layout: Layout,
    given: RoundInput,
    clients: Sequence[ClientId],
) -> SecretCohort:
    """Return the cohort of a round's remaining clients; ``given`` is about all ``clients``."""
    facts = given.facts(len(clients), layout.dimension)
    place = {client: row for row, client in enumerate(round.clients)}
    rows = tuple(place.get(client, -1) for client in clients)
    kept = torch.tensor([at for at, row in enumerate(rows) if row >= 0])
    lost = tuple(client for client in clients if client not in place)
    return SecretCohort(**facts, products=products, rows=rows).select(kept, lost)


def _round(
    updates: Tensor,
    clients: list[ClientId],
    layout: Layout,
    options: Secure,
    random: np.random.Generator,
    model: Tensor,
    index: int,
) -> SecretRound:
    if options.protocol != "complete":
        seed = random.bytes(32)
        return ArithmeticRound(updates, clients, layout.sizes, options, seed=seed, random=random)
    request = digest(model.detach().cpu().contiguous().numpy().tobytes())
    exchange = LocalExchange(updates, clients, options, request=request, random=random)
    occasion = digest(b"simulation", index.to_bytes(8, "little"))
    return MaskedRound(exchange, clients, layout.sizes, options, occasion=occasion, request=request)
