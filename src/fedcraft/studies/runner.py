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
from typing import Any

from fedcraft.console import say_stopping
from fedcraft.studies.child import attempt

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
    """Run every directory, ``jobs`` at once, and return how each ended, in the given order.

    ``progress`` and ``ended`` are called from other threads. KeyboardInterrupt asks the children
    for a last checkpoint and is then raised again.
    """
    order = list(directories)
    waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for directory in order:
        waiting.put(directory)
    workers = [_ChildThread(waiting, progress, ended) for _ in range(min(jobs, len(order)))]
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
    """A thread that feeds one child process and replaces it when it dies."""

    def __init__(self, waiting: queue.SimpleQueue[Path], progress: Progress, ended: Ended) -> None:
        super().__init__(daemon=True)
        self.outcomes: list[RunOutcome] = []
        self._waiting = waiting
        self._progress, self._ended = progress, ended
        self._child: subprocess.Popen[str] | None = None
        self._stopping = False
        self._error: BaseException | None = None
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115

    def wait(self) -> None:
        """Join in steps, so that the main thread still sees Ctrl-C; raise errors of the thread."""
        while self.is_alive():
            self.join(0.2)
        if self._error is not None:
            raise self._error

    def interrupt(self) -> None:
        """Ask the child for a last checkpoint, as Ctrl-C would."""
        self._stopping = True
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGINT)

    def see_off(self) -> None:
        """Wait for the child's last checkpoint, up to a limit."""
        if self._child is None:
            return
        try:
            self._child.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._child.kill()

    def run(self) -> None:
        """Take directories until there are none left, then end the child."""
        try:
            self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._dismiss()

    def _work(self) -> None:
        while not self._stopping:
            try:
                directory = self._waiting.get_nowait()
            except queue.Empty:
                break
            outcome = self._one(directory)
            if not self._stopping:
                self.outcomes.append(outcome)
                self._ended(outcome)

    def _dismiss(self) -> None:
        """Close the child's input, which ends it, even in the middle of a run."""
        child = self._child
        if child is not None and child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            child.wait()
        self._errors.close()

    def _one(self, directory: Path) -> RunOutcome:
        child = self._living()
        try:
            child.stdin.write(json.dumps(str(directory)) + "\n")  # type: ignore[union-attr]
            child.stdin.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            return RunOutcome(directory, self._obituary(child))
        for line in child.stdout or ():
            message = json.loads(line)
            if "round" in message:
                self._progress(directory, message)
            else:
                return RunOutcome(directory, message["error"], message.get("busy", False))
        return RunOutcome(directory, self._obituary(child))

    def _living(self) -> subprocess.Popen[str]:
        if self._child is None or self._child.poll() is not None:
            # A separate session: Ctrl-C in a terminal reaches only the parent, which passes it on.
            self._child = subprocess.Popen(
                [sys.executable, "-m", "fedcraft.studies.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                start_new_session=True,
                env={**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(_import_paths())},
            )
        return self._child

    def _obituary(self, child: subprocess.Popen[str]) -> str:
        code = child.wait()
        self._errors.seek(0)
        last = "\n".join(self._errors.read().splitlines()[-20:])
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"the worker process {how}. {last}".strip()


def _import_paths() -> list[str]:
    """Return the parent's import path, so that the child finds custom models on it."""
    return [path for path in sys.path if path]
