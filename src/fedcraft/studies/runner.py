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
from concurrent.futures import ThreadPoolExecutor, as_completed
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


class ChildPool:
    """A runner whose child processes, once started, serve all its calls until it is closed."""

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._busy: set[_Child] = set()
        self._stopping = False

    def __call__(
        self, directories: Iterable[Path], jobs: int, progress: Progress, ended: Ended
    ) -> list[RunOutcome]:
        """Run every directory, ``jobs`` at once, and return how each ended, in the given order.

        ``progress`` and ``ended`` are called from other threads. KeyboardInterrupt asks the
        children for a last checkpoint and is then raised again.
        """
        with ThreadPoolExecutor(jobs) as threads:
            try:
                runs = [threads.submit(self._run, d, progress, ended) for d in directories]
                for run in as_completed(runs):
                    run.result()
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    say_stopping()
                threads.shutdown(wait=False, cancel_futures=True)
                self._stop()
                raise
        return [run.result() for run in runs]

    def __enter__(self) -> ChildPool:
        return self

    def __exit__(self, *_: object) -> None:
        while (child := self._next_idle()) is not None:
            child.close()

    def _run(self, directory: Path, progress: Progress, ended: Ended) -> RunOutcome:
        """Do one run in a child that waits for one, or in a new child."""
        child, outcome = self._next_idle() or _Child(), RunOutcome(directory)
        self._busy.add(child)  # first, so that either _stop sees the child or this sees _stopping
        try:
            if not self._stopping:
                outcome = child.run(directory, progress)
            if not self._stopping:
                ended(outcome)
        except BaseException:
            self._stopping = True
            raise
        finally:
            self._busy.discard(child)
            if self._stopping:
                child.close()
            else:
                self._idle.put(child)
        return outcome

    def _next_idle(self) -> _Child | None:
        """Return a living child that has nothing to do, if there is one."""
        while not self._idle.empty():
            with contextlib.suppress(queue.Empty):  # another thread was faster
                child = self._idle.get_nowait()
                if child.lives:
                    return child
                child.close()
        return None

    def _stop(self) -> None:
        """Let the children write a last checkpoint, as Ctrl-C would; another Ctrl-C kills them."""
        self._stopping = True
        busy = list(self._busy)
        try:
            for child in busy:
                child.interrupt()
            for child in busy:
                child.wait()
        finally:  # also if another Ctrl-C ends the waiting
            for child in busy:
                child.kill()


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


class _Child:
    """A child process and what it wrote to its standard error."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        path = os.pathsep.join(filter(None, sys.path))  # the child finds the same custom models
        # A separate session: Ctrl-C in a terminal reaches only the parent, which passes it on.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedcraft.studies.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": path},
        )

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def run(self, directory: Path, progress: Progress) -> RunOutcome:
        """Let the child do a run; return how it ended, also if the child died with it."""
        try:
            for message in self._answers(directory):
                if "round" not in message:
                    return RunOutcome(directory, message["error"], message.get("busy", False))
                progress(directory, message)
        except BrokenPipeError:
            pass
        return RunOutcome(directory, self._cause_of_death())

    def _answers(self, directory: Path) -> Iterator[dict[str, Any]]:
        self._process.stdin.write(json.dumps(str(directory)) + "\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        for line in self._process.stdout or ():
            yield json.loads(line)

    def _cause_of_death(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        last = "\n".join(self._errors.read().splitlines()[-20:])
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"the worker process {how}. {last}".strip()

    def interrupt(self) -> None:
        if self.lives:
            self._process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        """Wait for the last checkpoint, up to a limit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Close the child's input, which ends it, even in the middle of a run."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()
