"""Does the runs of a sweep in local processes that end with their parent, or in this process.

A child process with one torch thread reads run directories from its standard input and answers in
JSON lines on its standard output. When the parent ends, for whatever reason, the child's input
ends and the child exits; a child that dies loses only its own run.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fedcraft.console import say_stopping
from fedcraft.studies.child import attempt

T = TypeVar("T")
Progress = Callable[[Path, dict[str, Any]], None]
"""Called now and then with the directory of a run and a record with its ``round``."""

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_PATIENCE = 60.0  # seconds a child has for its last checkpoint when asked to stop


@dataclass(frozen=True)
class RunOutcome:
    """How one run ended: ``error`` is empty if it went well."""

    directory: Path
    error: str = ""
    busy: bool = False


Ended = Callable[[RunOutcome], None]
Runner = Callable[[Sequence[Path], int, Progress, Ended], list[RunOutcome]]


def run_all(
    directories: Iterable[Path], jobs: int, progress: Progress, ended: Ended
) -> list[RunOutcome]:
    """Run every directory in child processes that end afterwards: see :class:`ChildPool`."""
    with ChildPool() as pool:
        return pool(directories, jobs, progress, ended)


class ChildPool:
    """A runner whose child processes, once started, serve all its calls until it is closed."""

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()

    def __call__(
        self, directories: Iterable[Path], jobs: int, progress: Progress, ended: Ended
    ) -> list[RunOutcome]:
        """Run every directory, ``jobs`` at once, and return how each ended, in the given order.

        ``progress`` and ``ended`` are called from other threads. KeyboardInterrupt asks the
        children for a last checkpoint and is then raised again.
        """
        order = list(directories)
        waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for directory in order:
            waiting.put(directory)
        count = min(jobs, len(order))
        workers = [_ChildThread(waiting, self._idle, progress, ended) for _ in range(count)]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.wait()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                say_stopping()
            for worker in workers:
                worker.interrupt()
            for worker in workers:
                worker.see_off()
            raise
        outcomes = {outcome.directory: outcome for worker in workers for outcome in worker.outcomes}
        return [outcomes[directory] for directory in order if directory in outcomes]

    def __enter__(self) -> ChildPool:
        return self

    def __exit__(self, *_: object) -> None:
        while (child := _next(self._idle)) is not None:
            child.dismiss()


def run_here(objects: Mapping[Path, Mapping[str, Any]]) -> Runner:
    """Return a runner that does the runs one by one in this process, which has their objects."""

    def run_each(
        directories: Sequence[Path], jobs: int, progress: Progress, ended: Ended
    ) -> list[RunOutcome]:
        outcomes = []
        for directory in directories:
            answer = attempt(directory, partial(progress, directory), objects[directory])
            if answer.pop("interrupted", False):
                raise KeyboardInterrupt
            outcomes.append(RunOutcome(directory, **answer))
            ended(outcomes[-1])
        return outcomes

    return run_each


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM, with which schedulers end a job, as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _ChildThread(threading.Thread):
    """A thread that feeds one child process at a time and replaces it when it dies."""

    def __init__(
        self,
        waiting: queue.SimpleQueue[Path],
        idle: queue.SimpleQueue[_Child],
        progress: Progress,
        ended: Ended,
    ) -> None:
        super().__init__(daemon=True)
        self.outcomes: list[RunOutcome] = []
        self._waiting, self._idle = waiting, idle
        self._progress, self._ended = progress, ended
        self._child: _Child | None = None
        self._stopping = False
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Join in steps, so that the main thread still sees Ctrl-C; raise errors of the thread."""
        while self.is_alive():
            self.join(0.2)
        if self._error is not None:
            raise self._error

    def interrupt(self) -> None:
        """Ask the child for a last checkpoint, as Ctrl-C would."""
        self._stopping = True
        if self._child is not None:
            self._child.interrupt()

    def see_off(self) -> None:
        """Wait for the child's last checkpoint, up to a limit."""
        if self._child is not None:
            self._child.see_off()

    def run(self) -> None:
        """Take directories until there are none left, then leave the child to the next call."""
        try:
            while not self._stopping and (directory := _next(self._waiting)) is not None:
                outcome = self._one(directory)
                if not self._stopping:
                    self.outcomes.append(outcome)
                    self._ended(outcome)
        except BaseException as error:
            self._error = error
        finally:
            if self._child is not None:
                if self._stopping or self._error is not None:
                    self._child.dismiss()
                else:
                    self._idle.put(self._child)

    def _one(self, directory: Path) -> RunOutcome:
        if self._child is None or not self._child.lives:
            if self._child is not None:
                self._child.dismiss()
            self._child = _next(self._idle) or _Child()
        try:
            for message in self._child.answers(directory):
                if "round" not in message:
                    return RunOutcome(directory, message["error"], message.get("busy", False))
                self._progress(directory, message)
        except BrokenPipeError:
            pass
        return RunOutcome(directory, self._child.obituary())


class _Child:
    """A child process and what it wrote to its standard error."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        # A separate session: Ctrl-C in a terminal reaches only the parent, which passes it on.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedcraft.studies.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(_import_paths())},
        )

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def answers(self, directory: Path) -> Iterator[dict[str, Any]]:
        """Hand the child a run; yield its messages until the one that ends the run."""
        self._process.stdin.write(json.dumps(str(directory)) + "\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        for line in self._process.stdout or ():
            yield json.loads(line)

    def interrupt(self) -> None:
        if self.lives:
            self._process.send_signal(signal.SIGINT)

    def see_off(self) -> None:
        """Wait for the last checkpoint, up to a limit."""
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def dismiss(self) -> None:
        """Close the child's input, which ends it, even in the middle of a run."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def obituary(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        last = "\n".join(self._errors.read().splitlines()[-20:])
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"the worker process {how}. {last}".strip()


def _next(waiting: queue.SimpleQueue[T]) -> T | None:
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return None


def _import_paths() -> list[str]:
    """Return the parent's import path, so that the child finds custom models on it."""
    return [path for path in sys.path if path]
