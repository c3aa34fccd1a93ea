"""Replies of a round, one by one: checked, written into their row of one matrix, and let go."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor

from fedcraft.engine.fleet import Trained, keeps_finite
from fedcraft.engine.job import REPORT
from fedcraft.errors import InputError, NonFiniteError
from fedcraft.flower import keys
from fedcraft.flower.arrays import Wire
from fedcraft.flower.roster import client_order
from fedcraft.updates import ClientId

__all__ = ["LARGEST_NUMBER", "LARGEST_SIZE", "Accepted", "Intake", "Metrics", "Refusal"]
__all__ += ["finite", "metrics_of", "within"]

Metrics = dict[str, Any]
LARGEST_SIZE = 2.0**53  # sums of data sizes stay exact, and far from Inf
LARGEST_NUMBER = 1e30  # of steps and losses: no square of one is Inf


@dataclass(frozen=True)
class Refusal:
    """A reply that takes no part, and why.

    ``kind`` is ``malformed``, ``nonfinite``, ``error`` (the app raised) or ``unavailable`` (Flower
    has lost the node or the reply).
    """

    node: int
    client: ClientId | None
    kind: str
    reason: str


@dataclass(frozen=True)
class Accepted:
    """A reply whose update lies in row ``row`` of the matrix; ``record`` held its metrics."""

    row: int
    node: int
    client: ClientId
    weight: float
    metrics: Metrics
    buffers: dict[str, Tensor] = field(default_factory=dict)
    record: str = keys.METRICS


class Intake:
    """The (m, d) matrix of a round, allocated once and filled anew in every round.

    Every node asked has its row from the start, in the expected order of the client ids;
    :meth:`sort` closes the gaps of those who did not come, in place. So the memory of a round is
    one matrix and one reply, whatever m.
    """

    def __init__(
        self, *, weight_key: str | None, needs: Iterable[str] = (), longest: float | None = None
    ) -> None:
        self._weight_key, self._longest = weight_key, longest
        self._needs = tuple(needs)
        self._held: Tensor | None = None
        self._seats: dict[int, int] = {}
        self.accepted: list[Accepted] = []

    def open(
        self, wire: Wire, theta: Tensor, nodes: Sequence[int], averaged: Mapping[str, Tensor] = {}
    ) -> None:
        """Make ready for the replies of these nodes to the broadcast ``theta``.

        ``averaged`` are the buffers into which theirs are averaged; no others are read.
        """
        self._wire, self._theta = wire, theta
        self._averaged = averaged
        self._seats = {node: row for row, node in enumerate(nodes)}
        self.accepted = []
        rows, columns = max(len(nodes), 1), wire.layout.dimension
        held = self._held
        if held is None or held.shape[0] < rows or held.shape[1:] != (columns,):
            self._held = None  # the old matrix must go before the new one comes
            self._held = torch.empty((rows, columns), dtype=wire.dtype)

    def take(self, node: int, client: ClientId, reply: Message) -> None:
        """Write one reply into its row, or raise what is wrong with it."""
        if node not in self._seats:
            raise InputError("it was not asked in this round")
        record, metrics = metrics_of(reply.content)
        for name in self._needs:
            within(metrics, name, 0, LARGEST_NUMBER)
        row = self._seats[node]
        buffers = self._read(reply.content, row)
        weight = self._weight(metrics)
        self.accepted.append(Accepted(row, node, client, weight, metrics, buffers, record))

    def sort(self) -> Tensor:
        """Bring the rows into the order of the client ids and return the matrix of those in it."""
        matrix = self._matrix()
        ordered = sorted(self.accepted, key=lambda reply: client_order(reply.client))
        occupant = {reply.row: index for index, reply in enumerate(ordered)}
        rows = [reply.row for reply in ordered]
        for target in range(len(ordered)):
            source = rows[target]
            if source == target:
                continue
            other = occupant.pop(target, None)
            kept = matrix[target].clone() if other is not None else None
            matrix[target].copy_(matrix[source])
            if other is not None and kept is not None:
                matrix[source].copy_(kept)
                rows[other], occupant[source] = source, other
            rows[target] = target
        self.accepted = [replace(r, row=row) for row, r in enumerate(ordered)]
        return matrix[: len(ordered)]

    def trained(self) -> Trained:
        """Return the round as the simulator's server takes it, clients in order."""
        updates = self.sort()
        clients = [reply.client for reply in self.accepted]
        report = np.ones((len(self.accepted), len(REPORT)))
        report[:, REPORT.index("samples")] = [reply.weight for reply in self.accepted]
        for name, key in (("steps", keys.STEPS), ("loss", keys.LOSS)):
            if key in self._needs:  # what the rule does not need was not checked either
                report[:, REPORT.index(name)] = [r.metrics[key] for r in self.accepted]
        return Trained(
            clients=np.asarray(clients, dtype=object),  # no other type holds all node ids
            updates=updates,
            report=report,
            states=[None] * len(self.accepted),
            buffers=[reply.buffers or None for reply in self.accepted],
            with_losses=keys.LOSS in self._needs,
        )

    def _matrix(self) -> Tensor:
        if self._held is None:
            raise InputError("replies: configure_train has to come before aggregate_train")
        return self._held

    def _weight(self, metrics: Metrics) -> float:
        if self._weight_key is None:
            return 1.0
        weight = within(metrics, self._weight_key, 0, LARGEST_SIZE)
        if weight == 0:
            raise InputError(f"metric {self._weight_key!r}: expected > 0, found {weight}")
        return weight

    def _read(self, content: RecordDict, row: int) -> dict[str, Tensor]:
        name, arrays = _only_arrays(content)
        out = self._matrix()[row]
        if name == keys.UPDATE and keys.ROW in arrays:  # others may call their model an update
            self._wire.read_update(arrays, out)
        else:
            self._wire.read_row(arrays, out, self._theta)
        buffers = self._wire.read_buffers(arrays, self._averaged)
        length = float(torch.linalg.vector_norm(out))
        if not math.isfinite(length):
            raise NonFiniteError("its update holds NaN or Inf, or numbers whose squares are Inf")
        if self._longest is not None and length > self._longest:
            raise InputError(f"its update has length {length:g}, more than {self._longest:g}")
        if not keeps_finite(self._averaged, buffers):
            raise NonFiniteError("one of its buffers holds NaN or Inf where the server's has not")
        return buffers


def metrics_of(content: RecordDict) -> tuple[str, Metrics]:
    """Return the metrics of a reply, which must hold exactly one MetricRecord, and its name."""
    records = list(content.metric_records.items())
    if len(records) != 1:
        raise InputError(f"expected one MetricRecord, found {len(records)}")
    name, metrics = records[0]
    return name, dict(metrics)


def _only_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    records = list(content.array_records.items())
    if len(records) != 1:
        raise InputError(f"expected one ArrayRecord, found {len(records)}")
    return records[0]


def finite(metrics: Metrics, name: str) -> float:
    """Return one number of a reply, which must be there and finite."""
    value = metrics.get(name)
    if not isinstance(value, (int, float)):
        found = "nothing" if value is None else type(value).__name__
        raise InputError(f"metric {name!r}: expected a number, found {found}")
    if not math.isfinite(value):
        raise NonFiniteError(f"metric {name!r} is {value}")
    return float(value)


def within(metrics: Metrics, name: str, least: float, most: float) -> float:
    """Return one number of a reply, which must lie between bounds."""
    value = finite(metrics, name)
    if not least <= value <= most:
        raise InputError(f"metric {name!r}: expected {least:g} to {most:g}, found {value:g}")
    return value
