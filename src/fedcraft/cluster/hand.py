"""A worker in a cluster: one process with one torch thread, kept for the whole run."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from fedcraft.cluster import parcels
from fedcraft.cluster.parcels import Answer, Broadcast, Errand, Packed, Shipment
from fedcraft.engine.bench import Bench
from fedcraft.engine.job import Command, Shard, shards
from fedcraft.engine.numerics import one_thread

__all__ = ["About", "Failure", "Hand"]


class About(NamedTuple):
    """Where a hand lives."""

    node: str
    pid: int


class Failure(NamedTuple):
    """A client's own code failed."""

    client: int | None
    text: str


class Hand:
    """A Ray actor that does errands with the same bench as every other executor.

    It keeps nothing between two errands but the job, so that any hand can do any errand again.
    """

    def prepare(self, shipment: Shipment) -> About:
        """Take over the job."""
        import ray

        one_thread()
        job, self._desk = parcels.unship(shipment)
        self._bench = Bench(job, self._desk)
        return About(ray.get_runtime_context().get_node_id(), os.getpid())

    def do(
        self, command: Command, errands: Sequence[Errand], model: Broadcast, initial: Packed
    ) -> list[Answer] | Failure:
        """Do some units of a phase, at most one per slot, or tell whose code failed."""
        parcels.install(self._desk, model, initial)
        answers = []
        for slot, errand in enumerate(errands):
            unit = parcels.receive(self._desk, slot, errand)
            try:
                self._bench.do(command, unit)
            except Exception:
                return Failure(errand.client, traceback.format_exc())
            answers.append(parcels.answer(self._desk, command, slot, self._shard(command, unit)))
        return answers

    def _shard(self, command: Command, unit: int) -> Shard | None:
        if command.kind != "evaluate":
            return None
        return shards(self._bench.job, command.splits)[unit]
