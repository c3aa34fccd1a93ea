"""A crew of persistent worker processes around one desk of shared memory."""

from __future__ import annotations

import atexit
import json
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

from fedcraft.engine.crew import Halt, client_error
from fedcraft.engine.job import Command, Desk, Job
from fedcraft.engine.portable import Portable
from fedcraft.engine.settings import StartMethod
from fedcraft.engine.worker import READY, encode, work
from fedcraft.errors import ConfigError, FedcraftError

__all__ = ["ProcessCrew", "WorkerError", "start_method"]

_START_SECONDS = 120.0
_LOOK_SECONDS = 0.2  # how often a waiting parent looks whether the user wants to stop
_DEATHS_ALLOWED = 3  # in one phase


class WorkerError(FedcraftError, RuntimeError):
    """Worker processes cannot be started, or keep dying."""


@dataclass(eq=False)
class _Worker:
    process: Any
    connection: Connection


class ProcessCrew:
    """``size`` workers that take units from a shared counter.

    A phase costs one small message to and one from every worker; units are taken under a file
    lock, tensors stay where they are. A worker that dies is replaced, and what it left undone is
    done again once the others have finished, so that no two workers ever see different rounds.
    """

    def __init__(
        self,
        job: Job,
        desk: Desk,
        size: int,
        halted: Callable[[], bool],
        method: StartMethod = "auto",
    ) -> None:
        self.size = size
        self._job: Job | Portable = job
        self._desk, self._halted = desk, halted
        self._context: Any = multiprocessing.get_context(start_method(method))
        if self._context.get_start_method() != "fork":
            self._job = Portable(job)
        if self._context.get_start_method() == "forkserver":
            self._context.set_forkserver_preload(["fedcraft.engine.worker"])
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        atexit.register(self.close)  # workers ignore the SIGTERM that Python ends daemons with
        try:
            for _ in range(size):
                self._hire()
            for worker in list(self._workers):
                self._await_ready(worker)
        except BaseException:
            self.close()
            raise

    def run(self, command: Command, units: Sequence[int]) -> None:
        """Let the workers do all units; raise ``ClientError`` with the first client's traceback."""
        missing, deaths = list(units), 0
        while missing:
            places = self._lay_out(missing)
            dead, errors = self._phase(command, places)
            if errors:
                client, text = min(errors, key=lambda error: (error[0] is None, error[0]))
                raise client_error(text, client, command.round, command.kind)
            deaths += len(dead)
            self._replace(dead, deaths)
            done = self._desk.done[:places]
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

    def _lay_out(self, units: Sequence[int]) -> int:
        places = len(units)
        self._desk.order[:places] = units
        self._desk.done[:places] = 0
        self._desk.counter[0] = 0
        return places

    def _phase(
        self, command: Command, places: int
    ) -> tuple[list[_Worker], list[tuple[int | None, str]]]:
        """Wake everybody and wait until all have answered or died."""
        message, waiting = encode(command, places), set()
        dead, errors = [], []
        for worker in self._workers:
            try:
                worker.connection.send_bytes(message)
                waiting.add(worker)
            except OSError:
                dead.append(worker)
                self._selector.unregister(worker.connection)
        while waiting:
            if command.voidable and self._halted():
                self._abandon(waiting)
            for key, _ in self._selector.select(_LOOK_SECONDS):
                worker = key.data
                try:
                    answer = worker.connection.recv_bytes()
                except (EOFError, OSError):
                    dead.append(worker)
                else:
                    errors += [tuple(json.loads(answer))] if answer else []
                waiting.discard(worker)
                if worker in dead:
                    self._selector.unregister(worker.connection)
        return dead, errors

    def _abandon(self, waiting: set[_Worker]) -> None:
        """The phase is void: end the workers that still work on it, so that none outlives it."""
        for worker in waiting:
            worker.process.kill()
        raise Halt

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
            self._await_ready(self._hire())

    def _hire(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        foreign = [w.connection for w in self._workers] + [ours]
        inherited = foreign if self._context.get_start_method() == "fork" else []
        process = self._context.Process(
            target=work,
            args=(self._job, self._desk, theirs, inherited),
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
            if worker.connection.poll(_START_SECONDS) and worker.connection.recv_bytes() == READY:
                return
        except (EOFError, OSError):
            worker.process.join(1)
        raise WorkerError(
            f"a worker process did not start (exit code {worker.process.exitcode}); what it "
            "printed says why. Under start methods other than 'fork' a script needs the guard "
            "if __name__ == '__main__', and the model's class must be importable"
        )


def start_method(wanted: StartMethod) -> str:
    """Return how to start workers: by fork where that is safe, which takes milliseconds.

    A fork copies one thread of the parent and every lock as it is, so with other Python threads
    or gRPC about, workers come from a clean server process instead (a second or two).
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
        # Newer Pythons warn of BLAS's idle threads at every fork; workers use none of them.
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
