"""The executor ``ray``: clients of a cohort spread over a cluster, the same bits as ``serial``."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedcraft.cluster import parcels
from fedcraft.cluster.hand import Failure
from fedcraft.cluster.parcels import Packed
from fedcraft.cluster.roster import Member, Roster
from fedcraft.cluster.session import Session
from fedcraft.engine.crew import Halt, client_error
from fedcraft.engine.job import Command, Desk, Job, Shard, shards
from fedcraft.engine.processes import WorkerError
from fedcraft.engine.settings import Settings

__all__ = ["RayCrew", "hire"]

_LOOK_SECONDS = 0.2  # how often the waiting server looks whether the user wants to stop
_MOST_UNITS = 8  # in one task: a task costs Ray about a millisecond, a small client less
_TASK_BYTES = 8 * 2**20  # of updates in one task, or a single larger one
_UNDER_WAY_BYTES = 512 * 2**20  # of updates that more than one task per hand may have
_SHARE = 4  # a task takes at most this part of what is left for each hand
_ATTEMPTS = 4  # hands that may be lost over one unit


def hire(settings: Settings, job: Job, desk: Desk, halted: Callable[[], bool]) -> RayCrew:
    """Return a crew on the cluster at ``settings.ray_address``, one hand per CPU or ``workers``."""
    session = Session(settings.ray_address, cpus=settings.worker_count)
    try:
        wanted = min(settings.workers or session.cpus, desk.units)
        return RayCrew(session, job, desk, wanted, halted)
    except BaseException:
        session.close()
        raise


class RayCrew:
    """Hands in a cluster, each with one CPU and one torch thread, for the whole run.

    Samples go to every node once, the broadcast model once per phase; the hands of a node read the
    same memory. Updates come back as they are finished and go straight into their rows of the
    server's matrix; beside one update per hand, at most 512 MB of them are under way. Units are
    done in any order at any place, and again elsewhere if their hand or its node is lost; what
    comes out depends on none of this.
    """

    def __init__(
        self, session: Session, job: Job, desk: Desk, wanted: int, halted: Callable[[], bool]
    ) -> None:
        self._session, self._ray = session, session.ray
        self._job, self._desk, self._halted = job, desk, halted
        row = desk.dimension * desk.dtype.itemsize
        self._slots = max(1, min(_MOST_UNITS, _TASK_BYTES // max(row, 1)))
        # With a second task at hand nobody waits for the server between two.
        self._queue = 2 if 2 * wanted * self._slots * row <= _UNDER_WAY_BYTES else 1
        self._node = session.node
        self._initial: Any = None
        self._roster = Roster(session, parcels.ship(job, desk, self._slots), wanted)

    @property
    def size(self) -> int:
        """Hands at work now."""
        return max(1, len(self._roster.members))

    def run(self, command: Command, units: Sequence[int]) -> None:
        """Let the hands do all units; raise ``ClientError`` with the first client's traceback."""
        phase = _Phase(command, deque(units), self._model(), self._plan(command))
        while phase.unfinished:
            if command.voidable and self._halted():
                raise Halt
            self._send(phase)
            for ref in self._arrivals(phase):
                if ref in phase.flights:
                    self._land(phase, ref)
                else:
                    self._roster.admit(ref)
        if phase.failures:
            client, text = min(phase.failures, key=lambda found: (found[0] is None, found[0]))
            raise client_error(text, client, command.round)

    def pids(self) -> list[int]:
        """Return the hands on this machine: of the others, memory cannot be looked at."""
        homes = [member.about for member in self._roster.members]
        return [about.pid for about in homes if about.node == self._node]

    def close(self) -> None:
        """End the hands, and the cluster if it was started for this run."""
        self._roster.close()
        self._session.close()

    def _model(self) -> tuple[Any, Any]:
        """Put the broadcast model, and once the initial one, where every node can fetch it."""
        if self._initial is None:  # not before the first phase: a resumed run brings its own
            packed: Packed = parcels.pack(self._desk.initial)
            self._initial = self._ray.put(packed)
        return self._ray.put(parcels.broadcast(self._desk)), self._initial

    def _plan(self, command: Command) -> list[Shard]:
        return shards(self._job, command.splits) if command.kind == "evaluate" else []

    def _send(self, phase: _Phase) -> None:
        members = self._roster.members
        for queued in range(self._queue):
            for member in members:
                # Near the end, a unit that queues here might be done sooner by somebody else.
                if phase.load(member) == queued and len(phase.waiting) > queued * len(members):
                    self._fly(phase, member, phase.take(self._slots, len(members)))

    def _fly(self, phase: _Phase, member: Member, units: list[int]) -> None:
        errands = [parcels.errand(self._desk, phase.command, unit) for unit in units]
        ref = member.actor.do.remote(phase.command, errands, *phase.model)
        phase.flights[ref] = _Flight(member, units)

    def _arrivals(self, phase: _Phase) -> list[Any]:
        refs = [*self._roster.joining, *phase.flights]  # the first that is ready: newcomers first
        self._roster.require_somebody()
        if not refs:
            time.sleep(_LOOK_SECONDS)
            return []
        ready: list[Any] = self._ray.wait(refs, num_returns=1, timeout=_LOOK_SECONDS)[0]
        return ready

    def _land(self, phase: _Phase, ref: Any) -> None:
        flight, errors = phase.flights.pop(ref), self._ray.exceptions
        try:
            found = self._ray.get(ref)
        except (errors.RayActorError, errors.OutOfMemoryError) as error:
            self._roster.retire(flight.member)
            phase.again(flight, error)
        except errors.ObjectLostError as error:
            phase.again(flight, error)  # its node was lost between the work and the way back
        else:
            self._keep(phase, flight, found)

    def _keep(self, phase: _Phase, flight: _Flight, found: Any) -> None:
        if isinstance(found, Failure):
            phase.failures.append(found)
            phase.waiting.clear()
            return
        for unit, answer in zip(flight.units, found, strict=True):
            shard = phase.plan[unit] if phase.plan else None
            parcels.deliver(self._desk, phase.command, unit, shard, answer)


@dataclass(frozen=True, eq=False)
class _Flight:
    """A task under way."""

    member: Member
    units: list[int]


@dataclass(eq=False)
class _Phase:
    """What is left to do of a phase, who does what, and what went wrong."""

    command: Command
    waiting: deque[int]
    model: tuple[Any, Any]
    plan: list[Shard]
    flights: dict[Any, _Flight] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    _losses: Counter[int] = field(default_factory=Counter)

    @property
    def unfinished(self) -> bool:
        return bool(self.waiting or self.flights)

    def load(self, member: Member) -> int:
        """Return how many tasks a hand has."""
        return sum(flight.member is member for flight in self.flights.values())

    def take(self, most: int, hands: int) -> list[int]:
        """Take the longest unit that waits, and a few of the shortest with it."""
        count = min(most, max(1, len(self.waiting) // (_SHARE * hands)))
        return [self.waiting.popleft(), *(self.waiting.pop() for _ in range(count - 1))]

    def again(self, flight: _Flight, error: Exception) -> None:
        """Put the units of a lost task back, unless they were lost too often."""
        if self.failures:
            return
        for unit in reversed(flight.units):
            self._losses[unit] += 1
            if self._losses[unit] >= _ATTEMPTS:
                raise WorkerError(
                    f"{_ATTEMPTS} workers were lost over the same unit of work ({unit} of phase "
                    f"{self.command.kind!r}), the last with: {error}\nUsually memory ran out: use "
                    "fewer workers per node or a smaller evaluate_batch"
                ) from error
            self.waiting.appendleft(unit)
