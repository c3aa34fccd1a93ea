"""The hands of a run: those at work, and those on their way."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedcraft.cluster.hand import About, Hand
from fedcraft.cluster.parcels import Shipment
from fedcraft.cluster.session import Session
from fedcraft.engine.processes import WorkerError

__all__ = ["Member", "Roster"]

_START_SECONDS = 120.0  # without a single hand
_GATHER_SECONDS = 10.0  # for the others, once the first one is there
_NEWCOMERS_LOST = 3  # in a row


@dataclass(frozen=True, eq=False)
class Member:
    """A hand that has taken over the job."""

    actor: Any
    about: About


class Roster:
    """``wanted`` hands with one CPU each, wherever the cluster has room for them.

    A hand that is lost is asked for anew. It comes when there is a CPU for it, on whichever node,
    also on one that joins later; until then the others do its work.
    """

    def __init__(self, session: Session, shipment: Shipment, wanted: int) -> None:
        self._ray, self._wanted = session.ray, wanted
        self.members: list[Member] = []
        self.joining: dict[Any, Any] = {}
        self._newcomers_lost = 0
        self._seen = time.monotonic()
        self._shipment = self._put(shipment)
        # No restarts by Ray: a hand that comes back without the job would be of no use.
        options = {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self._kind = self._ray.remote(**options)(Hand)
        for _ in range(wanted):
            self._ask()
        self._gather()

    def admit(self, ref: Any) -> None:
        """Take in a newcomer, or ask for another one if it did not survive its start."""
        actor, errors = self.joining.pop(ref), self._ray.exceptions
        try:
            about = self._ray.get(ref)
        except (errors.RayActorError, errors.OutOfMemoryError, errors.ObjectLostError) as error:
            self._lose_newcomer(error)
        except errors.RayError as error:
            raise WorkerError(
                f"a worker in the cluster cannot take over the run: {error}\nEvery node needs the "
                "same packages, and the module of your own model or loss"
            ) from error
        else:
            self._newcomers_lost, self._seen = 0, time.monotonic()
            self.members.append(Member(actor, About(*about)))

    def retire(self, member: Member) -> None:
        """Strike off a hand that does not answer and ask for another."""
        if member in self.members:
            self.members.remove(member)
            self._seen = time.monotonic()
            self._end(member.actor)
            self._ask()

    def require_somebody(self) -> None:
        """Raise if nobody has been there for too long."""
        if not self.members and time.monotonic() - self._seen > _START_SECONDS:
            raise WorkerError(
                f"no worker could start in the cluster for {_START_SECONDS:.0f} seconds; each needs"
                " one free CPU. 'ray status' shows who uses them"
            )

    def close(self) -> None:
        """End everybody."""
        for actor in [*(member.actor for member in self.members), *self.joining.values()]:
            self._end(actor)
        self.members.clear()
        self.joining.clear()

    def _put(self, shipment: Shipment) -> Any:
        try:
            return self._ray.put(shipment)
        except TypeError as error:
            raise WorkerError(
                f"the run cannot be sent to a cluster: {error}; define the model and its functions "
                "in a module that can be imported, or use executor='serial'"
            ) from error

    def _ask(self) -> None:
        actor = self._kind.remote()
        self.joining[actor.prepare.remote(self._shipment)] = actor

    def _gather(self) -> None:
        """Wait for everybody, but for the late ones not long once somebody is there."""
        first = None
        while self.joining:
            ready, _ = self._ray.wait(list(self.joining), num_returns=1, timeout=1.0)
            for ref in ready:
                self.admit(ref)
            self.require_somebody()
            first = first or (time.monotonic() if self.members else None)
            if first is not None and time.monotonic() - first > _GATHER_SECONDS:
                break

    def _lose_newcomer(self, error: Exception) -> None:
        self._newcomers_lost += 1
        if self._newcomers_lost > max(_NEWCOMERS_LOST, self._wanted):
            raise WorkerError(f"workers keep dying when they start: {error}") from error
        self._ask()

    def _end(self, actor: Any) -> None:
        with suppress(Exception):  # it may be gone, and its node with it
            self._ray.kill(actor)
