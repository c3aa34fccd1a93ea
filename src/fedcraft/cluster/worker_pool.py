"""The Ray workers of a run: those at work, and those that are starting."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedcraft.cluster.connection import RayConnection
from fedcraft.cluster.ray_worker import RayWorker
from fedcraft.cluster.serialization import PackedJob
from fedcraft.engine.executors.processes import WorkerError

_START_SECONDS = 120.0  # without a single worker
_GATHER_SECONDS = 10.0  # for the others, once the first one is there
_FAILED_STARTS = 3  # in a row


@dataclass(frozen=True, eq=False)
class PoolWorker:
    """A worker that has taken over the job, and where it runs."""

    actor: Any
    node: str
    pid: int


class WorkerPool:
    """``wanted`` workers with one CPU each, wherever the cluster has room for them.

    A worker that is lost is requested again. The new one starts when there is a CPU for it, on any
    node, also on one that joins later; until then the others do its work.
    """

    def __init__(self, connection: RayConnection, packed: PackedJob, wanted: int) -> None:
        self._ray, self._wanted = connection.ray, wanted
        self.workers: list[PoolWorker] = []
        self.starting: dict[Any, Any] = {}
        self._failed_starts = 0
        self._last_seen = time.monotonic()
        self._packed = self._put(packed)
        # No restarts by Ray: a worker that restarts without the job would be useless.
        options = {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self._actor_class = self._ray.remote(**options)(RayWorker)
        for _ in range(wanted):
            self._request()
        self._gather()

    def admit(self, ref: Any) -> None:
        """Add a worker that has started, or request another one if it died."""
        actor, errors = self.starting.pop(ref), self._ray.exceptions
        try:
            node, pid = self._ray.get(ref)
        except (errors.RayActorError, errors.OutOfMemoryError, errors.ObjectLostError) as error:
            self._failed_starts += 1
            if self._failed_starts > max(_FAILED_STARTS, self._wanted):
                raise WorkerError(f"workers keep dying when they start: {error}") from error
            self._request()
        except errors.RayError as error:
            raise WorkerError(
                f"a worker in the cluster cannot take over the run: {error}\nEvery node needs the "
                "same packages, and the modules of custom models and losses"
            ) from error
        else:
            self._failed_starts, self._last_seen = 0, time.monotonic()
            self.workers.append(PoolWorker(actor, node, pid))

    def replace(self, worker: PoolWorker) -> None:
        """Drop a worker that does not answer and request another."""
        if worker in self.workers:
            self.workers.remove(worker)
            self._last_seen = time.monotonic()
            self._end(worker.actor)
            self._request()

    def require_worker(self) -> None:
        """Raise if there has been no worker for too long."""
        if not self.workers and time.monotonic() - self._last_seen > _START_SECONDS:
            raise WorkerError(
                f"no worker could start in the cluster for {_START_SECONDS:.0f} seconds; each needs"
                " one free CPU. 'ray status' shows what uses them"
            )

    def close(self) -> None:
        """End all workers."""
        for actor in [*(worker.actor for worker in self.workers), *self.starting.values()]:
            self._end(actor)
        self.workers.clear()
        self.starting.clear()

    def _put(self, packed: PackedJob) -> Any:
        try:
            return self._ray.put(packed)
        except TypeError as error:
            raise WorkerError(
                f"the run cannot be sent to a cluster: {error}; define the model and its functions "
                "in a module that can be imported, or use executor='serial'"
            ) from error

    def _request(self) -> None:
        actor = self._actor_class.remote()
        self.starting[actor.prepare.remote(self._packed)] = actor

    def _gather(self) -> None:
        """Wait for the workers; once the first has started, not long for the others."""
        first = None
        while self.starting:
            ready, _ = self._ray.wait(list(self.starting), num_returns=1, timeout=1.0)
            for ref in ready:
                self.admit(ref)
            self.require_worker()
            first = first or (time.monotonic() if self.workers else None)
            if first is not None and time.monotonic() - first > _GATHER_SECONDS:
                break

    def _end(self, actor: Any) -> None:
        with suppress(Exception):  # it may be gone, together with its node
            self._ray.kill(actor)
