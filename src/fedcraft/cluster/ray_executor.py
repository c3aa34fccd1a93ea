"""The executor ``ray``: trains clients on a cluster, with the same bits as ``serial``."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedcraft.cluster import serialization
from fedcraft.cluster.connection import RayConnection
from fedcraft.cluster.worker_pool import PoolWorker, WorkerPool
from fedcraft.config.settings import Settings
from fedcraft.engine.executors.executor import raise_first
from fedcraft.engine.executors.job import Command, Job, Shard, Workspace
from fedcraft.engine.executors.processes import WorkerError
from fedcraft.engine.executors.units import UnitFailure
from fedcraft.engine.interrupt import Halt

_POLL_SECONDS = 0.2  # how often the waiting server checks whether the user wants to stop
_MOST_UNITS = 8  # in one task: a task costs Ray about a millisecond, a small client less
_TASK_BYTES = 8 * 2**20  # of updates in one task, or a single larger one
_UNDER_WAY_BYTES = 512 * 2**20  # of updates that more than one task per worker may have
_SHARE = 4  # a task takes at most this part of what is left for each worker
_ATTEMPTS = 4  # workers that may be lost over one unit


def make_ray_executor(
    settings: Settings, job: Job, workspace: Workspace, stop_requested: Callable[[], bool]
) -> RayExecutor:
    """Return the executor: ``settings.workers`` workers, or one per CPU of the cluster."""
    connection = RayConnection(settings.ray_address, cpus=settings.worker_count)
    try:
        wanted = min(settings.workers or connection.cpus, workspace.units)
        return RayExecutor(connection, job, workspace, wanted, stop_requested)
    except BaseException:
        connection.close()
        raise


class RayExecutor:
    """Workers in a cluster, each with one CPU and one torch thread, for the whole run.

    Samples go to every node once, the broadcast model once per phase; the workers of a node read
    the same memory. Updates come back as they are finished and go straight into their rows of the
    server's matrix; besides one update per worker, at most 512 MB of them are in transit. Units run
    in any order on any node, and again elsewhere if their worker or its node is lost; the result
    depends on none of this.
    """

    def __init__(
        self,
        connection: RayConnection,
        job: Job,
        workspace: Workspace,
        wanted: int,
        stop_requested: Callable[[], bool],
    ) -> None:
        self._connection, self._ray, self._node = connection, connection.ray, connection.node
        self._job, self._workspace, self._stop_requested = job, workspace, stop_requested
        row = workspace.dimension * workspace.dtype.itemsize
        self._slots = max(1, min(_MOST_UNITS, _TASK_BYTES // max(row, 1)))
        # With a second task queued, no worker waits for the server between two.
        self._queue = 2 if 2 * wanted * self._slots * row <= _UNDER_WAY_BYTES else 1
        self._initial: Any = None
        packed = serialization.pack_job(job, workspace, self._slots)
        self._pool = WorkerPool(connection, packed, wanted)

    @property
    def size(self) -> int:
        """The number of workers now."""
        return max(1, len(self._pool.workers))

    def run(self, command: Command, units: Sequence[int]) -> None:
        """Let the workers run all units; raise ``ClientError`` if the code of a client fails."""
        evaluates = command.kind == "evaluate"
        places = self._job.shards(command.splits) if evaluates else range(self._workspace.slots)
        phase = _Phase(command, deque(units), self._put_model(), places)
        while phase.waiting or phase.running:
            if command.discardable and self._stop_requested():
                raise Halt
            self._submit(phase)
            for ref in self._wait(phase):
                if ref in phase.running:
                    self._collect(phase, ref)
                else:
                    self._pool.admit(ref)
        raise_first(phase.failures)

    def pids(self) -> list[int]:
        """Return the workers on this machine: the memory of the others cannot be read."""
        return [worker.pid for worker in self._pool.workers if worker.node == self._node]

    def close(self) -> None:
        """End the workers, and the cluster if it was started for this run."""
        self._pool.close()
        self._connection.close()

    def _put_model(self) -> tuple[Any, Any]:
        """Put the broadcast model, and once the initial one, into the cluster's object store."""
        if self._initial is None:  # not before the first phase: a resumed run brings its own
            self._initial = self._ray.put(serialization.pack(self._workspace.initial))
        return self._ray.put(serialization.pack_broadcast(self._workspace)), self._initial

    def _submit(self, phase: _Phase) -> None:
        workers = self._pool.workers
        for queued in range(self._queue):
            for worker in workers:
                # Near the end, another worker might finish a unit sooner than this queue.
                if phase.load(worker) == queued and len(phase.waiting) > queued * len(workers):
                    units = phase.take(self._slots, len(workers))
                    inputs = [
                        serialization.pack_input(self._workspace, phase.command, unit)
                        for unit in units
                    ]
                    ref = worker.actor.run.remote(phase.command, inputs, *phase.model)
                    phase.running[ref] = _Task(worker, units)

    def _wait(self, phase: _Phase) -> list[Any]:
        refs = [*self._pool.starting, *phase.running]  # new workers come first
        self._pool.require_worker()
        if not refs:
            time.sleep(_POLL_SECONDS)
            return []
        ready: list[Any] = self._ray.wait(refs, num_returns=1, timeout=_POLL_SECONDS)[0]
        return ready

    def _collect(self, phase: _Phase, ref: Any) -> None:
        task, errors = phase.running.pop(ref), self._ray.exceptions
        try:
            found = self._ray.get(ref)
        except (errors.RayActorError, errors.OutOfMemoryError) as error:
            self._pool.replace(task.worker)
            phase.repeat(task, error)
        except errors.ObjectLostError as error:
            phase.repeat(task, error)  # its node was lost after the work was done
        else:
            if isinstance(found, UnitFailure):
                phase.failures.append(found)
                phase.waiting.clear()
                return
            for unit, output in zip(task.units, found, strict=True):
                place = phase.places[unit]
                serialization.unpack_output(self._workspace, phase.command, place, output)


@dataclass(frozen=True, eq=False)
class _Task:
    """Units that one worker has been asked to run."""

    worker: PoolWorker
    units: list[int]


@dataclass(eq=False)
class _Phase:
    """The units of a phase that wait, those that run, and what went wrong."""

    command: Command
    waiting: deque[int]
    model: tuple[Any, Any]
    places: Sequence[int | Shard]
    running: dict[Any, _Task] = field(default_factory=dict)
    failures: list[UnitFailure] = field(default_factory=list)
    _losses: Counter[int] = field(default_factory=Counter)

    def load(self, worker: PoolWorker) -> int:
        """Return how many tasks a worker has."""
        return sum(task.worker is worker for task in self.running.values())

    def take(self, most: int, workers: int) -> list[int]:
        """Take the longest unit that waits, and a few of the shortest with it."""
        count = min(most, max(1, len(self.waiting) // (_SHARE * workers)))
        return [self.waiting.popleft(), *(self.waiting.pop() for _ in range(count - 1))]

    def repeat(self, task: _Task, error: Exception) -> None:
        """Put the units of a lost task back, unless they were lost too often."""
        if self.failures:
            return
        for unit in reversed(task.units):
            self._losses[unit] += 1
            if self._losses[unit] >= _ATTEMPTS:
                raise WorkerError(
                    f"{_ATTEMPTS} workers were lost over the same unit of work ({unit} of phase "
                    f"{self.command.kind!r}), the last with: {error}\nUsually memory ran out: use "
                    "fewer workers per node or a smaller evaluate_batch"
                ) from error
            self.waiting.appendleft(unit)
