"""The executor ``processes``: persistent worker processes around one shared workspace."""

from __future__ import annotations

import atexit
import multiprocessing
import selectors
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from fedcraft.config.settings import StartMethod
from fedcraft.engine.executors.executor import raise_first
from fedcraft.engine.executors.job import Command, Job, Workspace
from fedcraft.engine.executors.units import UnitFailure
from fedcraft.engine.executors.worker import READY, SharedJob, worker_main
from fedcraft.engine.interrupt import Halt
from fedcraft.errors import ConfigError, FedcraftError

_START_SECONDS = 120.0
_POLL_SECONDS = 0.2  # how often a waiting parent checks whether the user wants to stop
_DEATHS_ALLOWED = 3  # in one phase


class WorkerError(FedcraftError, RuntimeError):
    """Worker processes cannot be started, or keep dying."""


@dataclass(eq=False)
class _Worker:
    process: Any
    connection: Connection


class ProcessExecutor:
    """``size`` workers that take units from a shared counter.

    A phase costs one small message to and one from every worker; units are taken under a file
    lock, and tensors are not moved. A worker that dies is replaced, and its unfinished units are
    run again once the others have finished, so that no two workers ever see different rounds.
    """

    def __init__(
        self,
        job: Job,
        workspace: Workspace,
        size: int,
        stop_requested: Callable[[], bool],
        method: StartMethod = "auto",
    ) -> None:
        self.size = size
        self._workspace, self._stop_requested = workspace, stop_requested
        self._method = _start_method(method)
        self._context: Any = multiprocessing.get_context(self._method)
        self._job = job if self._method == "fork" else SharedJob(job)
        if self._method == "forkserver":
            self._context.set_forkserver_preload([worker_main.__module__])
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        atexit.register(self.close)  # workers ignore the SIGTERM that Python ends daemons with
        try:
            for _ in range(size):
                self._start_worker()
            for worker in list(self._workers):
                self._await_ready(worker)
        except BaseException:
            self.close()
            raise

    def run(self, command: Command, units: Sequence[int]) -> None:
        """Let the workers run all units; raise ``ClientError`` if the code of a client fails."""
        missing, deaths, workspace = list(units), 0, self._workspace
        while missing:
            count = len(missing)
            workspace.queue[:count], workspace.done[:count], workspace.counter[0] = missing, 0, 0
            dead, failures = self._phase(command, count)
            raise_first(failures)
            deaths += len(dead)
            self._replace(dead, deaths)
            done = workspace.done[:count]
            missing = [unit for unit, flag in zip(missing, done, strict=True) if not flag]

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """Close the pipes, which ends idle workers, and kill the busy ones."""
        atexit.unregister(self.close)
        for worker in self._workers:
            worker.connection.close()
        deadline = time.monotonic() + 0.5
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()
        self._selector.close()

    def _phase(self, command: Command, units: int) -> tuple[list[_Worker], list[UnitFailure]]:
        """Send the command to all workers and wait until each has answered or died."""
        waiting, dead, failures = set(), [], []
        for worker in self._workers:
            try:
                worker.connection.send((command, units))
                waiting.add(worker)
            except OSError:
                dead.append(worker)
                self._selector.unregister(worker.connection)
        while waiting:
            if command.discardable and self._stop_requested():
                for worker in waiting:
                    worker.process.kill()  # none may outlive the phase and write into the next
                raise Halt
            for key, _ in self._selector.select(_POLL_SECONDS):
                worker = key.data
                waiting.discard(worker)
                try:
                    answer = worker.connection.recv()
                except (EOFError, OSError):
                    dead.append(worker)
                    self._selector.unregister(worker.connection)
                else:
                    failures += [answer] if answer else []
        return dead, failures

    def _replace(self, dead: list[_Worker], deaths: int) -> None:
        for worker in dead:
            worker.process.join()
            worker.connection.close()
            self._workers.remove(worker)
            if deaths > _DEATHS_ALLOWED:
                raise WorkerError(
                    f"{deaths} workers died in one phase, the last with exit code "
                    f"{worker.process.exitcode}; -9 usually means that memory ran out: use fewer "
                    "workers, a smaller evaluate_batch, or executor='serial'"
                )
            self._await_ready(self._start_worker())

    def _start_worker(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        open_here = [*(worker.connection for worker in self._workers), ours]
        inherited = open_here if self._method == "fork" else []
        process = self._context.Process(
            target=worker_main,
            args=(self._job, self._workspace, theirs, inherited),
            daemon=True,
            name="fedcraft-worker",
        )
        _start(process)
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _await_ready(self, worker: _Worker) -> None:
        try:
            if worker.connection.poll(_START_SECONDS) and worker.connection.recv() == READY:
                return
        except (EOFError, OSError):
            worker.process.join(1)
        raise WorkerError(
            f"a worker process did not start (exit code {worker.process.exitcode}); its output "
            "explains why. Under start methods other than 'fork' a script needs the guard "
            "if __name__ == '__main__', and the model's class must be importable"
        )


def _start_method(wanted: StartMethod) -> str:
    """Return how to start workers: by fork where that is safe, which takes milliseconds.

    A fork copies one thread of the parent and the state of every lock. If there are other Python
    threads, or gRPC is loaded, workers come from a clean server process instead (a second or two).
    """
    available = multiprocessing.get_all_start_methods()
    if wanted != "auto":
        if wanted not in available:
            raise ConfigError(f"start_method: expected one of {available}, found {wanted!r}")
        return wanted
    risky = threading.active_count() > 1 or "grpc" in sys.modules or sys.platform != "linux"
    return "forkserver" if risky else "fork"


def _start(process: Any) -> None:
    with warnings.catch_warnings():
        # Newer Pythons warn about BLAS's idle threads at every fork; workers do not use them.
        warnings.filterwarnings(
            "ignore", message=".*multi-threaded.*fork", category=DeprecationWarning
        )
        try:
            process.start()
        except (AttributeError, TypeError) as error:
            raise WorkerError(
                f"the run cannot be sent to a worker process: {error}; define the model and its "
                "functions in a module that can be imported, or use executor='serial'"
            ) from error
