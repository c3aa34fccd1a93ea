"""The replies of a round: each is checked, written into its row of one matrix, and freed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from fedcraft.engine.client_manager import CohortUpdates, keeps_finite
from fedcraft.engine.executors.job import REPORT
from fedcraft.errors import InputError, NonFiniteError
from fedcraft.flower.messages import keys
from fedcraft.flower.messages.arrays import WireFormat
from fedcraft.updates import ClientId, client_order

Metrics = dict[str, Any]
LARGEST_SIZE = 2.0**53  # sums of data sizes stay exact, and far from Inf
LARGEST_NUMBER = 1e30  # of steps and losses: their squares are finite


@dataclass(frozen=True)
class AcceptedReply:
    """A reply that counts: its metrics, the name of their record, and the row of its update.

    ``row`` is a row of the update matrix; the reply to an evaluation has none.
    """

    node: int
    client: ClientId
    weight: float
    metrics: Metrics
    record: str
    row: int = -1
    buffers: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class RefusedReply:
    """A reply that does not count, and why.

    ``kind`` is ``malformed``, ``nonfinite``, ``error`` (the app raised) or ``unavailable`` (Flower
    has lost the node or the reply).
    """

    node: int
    client: ClientId | None
    kind: str
    reason: str

    def row(self) -> dict[str, Any]:
        """Return a row for JSON; node ids have 64 bits, more than numbers have in some readers."""
        return {**vars(self), "node": str(self.node)}


class UpdateMatrix:
    """The (m, d) matrix of a round, allocated once and filled again in every round.

    Every node that is asked has its row from the start, in the expected order of the client ids;
    :meth:`sort` closes the gaps of missing replies in place. So a round needs the memory of one
    matrix and one reply, whatever m is. ``needs`` are metrics that every reply must report, and
    updates longer than ``longest`` are refused. ``check`` raises what else is wrong with metrics.
    """

    def __init__(
        self,
        wire: WireFormat,
        *,
        weight_key: str | None,
        needs: Iterable[str] = (),
        longest: float | None = None,
        check: Callable[[Metrics], None] = lambda metrics: None,
    ) -> None:
        self._wire, self._weight_key, self._longest = wire, weight_key, longest
        self._needs, self._check = tuple(needs), check
        self._matrix = torch.empty((0, wire.layout.dimension), dtype=wire.dtype)
        self._rows: dict[int, int] = {}
        self.accepted: list[AcceptedReply] = []

    def open(
        self, nodes: Sequence[int], theta: Tensor, averaged: Mapping[str, Tensor] = {}
    ) -> None:
        """Prepare for the replies of ``nodes`` to the broadcast ``theta``.

        ``averaged`` are the server's buffers that are averaged; no others are read.
        """
        self._theta, self._averaged = theta, averaged
        self._rows = {node: row for row, node in enumerate(nodes)}
        self.accepted = []
        if len(self._matrix) < len(nodes):
            self._matrix = self._matrix[:0].clone()  # frees the old matrix before the new one
            self._matrix = self._matrix.new_empty((len(nodes), self._wire.layout.dimension))

    def add(self, node: int, client: ClientId, reply: Message, *, secret: bool = False) -> None:
        """Write one reply into its row, or raise what is wrong with it.

        A ``secret`` update stays with the client: only the metrics are read.
        """
        if node not in self._rows:
            raise InputError("it was not asked in this round")
        record, metrics = read_metrics(reply.content)
        for name in self._needs:
            within(metrics, name, 0, LARGEST_NUMBER)
        self._check(metrics)
        row = self._rows[node]
        buffers = {} if secret else self._read_arrays(reply.content, self._matrix[row])
        weight = self._weight(metrics)
        self.accepted.append(AcceptedReply(node, client, weight, metrics, record, row, buffers))

    def _read_arrays(self, content: RecordDict, row: Tensor) -> dict[str, Tensor]:
        """Write a reply's update into ``row`` and return its buffers."""
        records = list(content.array_records.items())
        if len(records) != 1:
            raise InputError(f"expected one ArrayRecord, found {len(records)}")
        name, arrays = records[0]
        if name == keys.UPDATE and keys.ROW in arrays:  # an app may call its model an update
            self._wire.read_update(arrays, row)
        else:
            self._wire.read_model(arrays, row, self._theta)
        buffers = self._wire.read_buffers(arrays, self._averaged)
        length = float(torch.linalg.vector_norm(row))
        if not math.isfinite(length):
            raise NonFiniteError("its update holds NaN or Inf, or numbers whose squares are Inf")
        if self._longest is not None and length > self._longest:
            raise InputError(f"its update has length {length:g}, more than {self._longest:g}")
        if not keeps_finite(self._averaged, buffers):
            raise NonFiniteError("one of its buffers holds NaN or Inf where the server's does not")
        return buffers

    def _weight(self, metrics: Metrics) -> float:
        if self._weight_key is None:
            return 1.0
        weight = within(metrics, self._weight_key, 0, LARGEST_SIZE)
        if weight == 0:
            raise InputError(f"metric {self._weight_key!r}: expected > 0, found {weight}")
        return weight

    def sort(self) -> Tensor:
        """Bring the accepted rows into the order of the client ids and return them."""
        matrix = self._matrix
        self.accepted.sort(key=lambda reply: client_order(reply.client))
        rows = [reply.row for reply in self.accepted]
        for target, source in enumerate(rows):
            if source == target:
                continue
            if target in rows:  # a later reply is there: the two are swapped
                matrix[[target, source]] = matrix[[source, target]]
                rows[rows.index(target)] = source
            else:
                matrix[target] = matrix[source]
            rows[target] = target
        self.accepted = [replace(reply, row=row) for row, reply in enumerate(self.accepted)]
        return matrix[: len(rows)]

    def trained(self, *, secret: bool = False) -> CohortUpdates:
        """Return the round in the form of the simulator, in the order of the client ids.

        If updates are ``secret`` there are none in it, and the replies are in order already.
        """
        updates = self._matrix[:0] if secret else self.sort()
        report = np.ones((len(self.accepted), len(REPORT)))
        report[:, REPORT.index("samples")] = [reply.weight for reply in self.accepted]
        for name, key in (("steps", keys.STEPS), ("loss", keys.LOSS)):
            if key in self._needs:  # metrics that the rule does not need were not checked
                report[:, REPORT.index(name)] = [r.metrics[key] for r in self.accepted]
        clients = [reply.client for reply in self.accepted]
        return CohortUpdates(
            clients=np.asarray(clients, dtype=object),  # no other type holds all node ids
            updates=updates,
            report=report,
            states=[None] * len(clients),
            buffers=[reply.buffers or None for reply in self.accepted],
            with_losses=keys.LOSS in self._needs,
        )


def read_metrics(content: RecordDict) -> tuple[str, Metrics]:
    """Return the name and content of a reply's MetricRecord; there must be exactly one."""
    records = list(content.metric_records.items())
    if len(records) != 1:
        raise InputError(f"expected one MetricRecord, found {len(records)}")
    name, metrics = records[0]
    return name, dict(metrics)


def reported_client(metrics: Metrics) -> ClientId | None:
    """Return the number by which a client names itself; None if it does not."""
    found = metrics.get(keys.CLIENT)
    if found is None or (isinstance(found, int) and found >= 0):
        return found
    raise InputError(f"metric {keys.CLIENT!r}: expected a whole number >= 0, found {found!r}")


def finite(metrics: Metrics, name: str) -> float:
    """Return a metric, which must be there and finite."""
    value = metrics.get(name)
    if not isinstance(value, (int, float)):
        found = "nothing" if value is None else type(value).__name__
        raise InputError(f"metric {name!r}: expected a number, found {found}")
    if not math.isfinite(value):
        raise NonFiniteError(f"metric {name!r} is {value}")
    return float(value)


def within(metrics: Metrics, name: str, least: float, most: float) -> float:
    """Return a metric, which must lie between bounds."""
    value = finite(metrics, name)
    if not least <= value <= most:
        raise InputError(f"metric {name!r}: expected {least:g} to {most:g}, found {value:g}")
    return value
