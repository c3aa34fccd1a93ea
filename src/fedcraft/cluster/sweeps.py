"""Sweeps over a cluster: every run is one Ray task with one CPU, in a folder that all nodes see."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import chdir, nullcontext
from pathlib import Path
from typing import Any

from fedcraft.cluster.connection import RayConnection
from fedcraft.runs import Run
from fedcraft.studies.plan import Plan
from fedcraft.studies.runner import Ended, Progress, RunOutcome
from fedcraft.studies.sweep import Observer, SweepResult
from fedcraft.studies.sweep import sweep as local_sweep

_LOOK_SECONDS = 1.0
_PATIENCE = 60.0  # seconds for the last checkpoints when the user wants to stop
_OURS = "FEDCRAFT_"


def sweep(
    plan: Plan | Mapping[str, Any] | str | Path,
    *,
    address: str | None = None,
    out: str | Path | None = None,
    jobs: int = 0,
    observer: Observer | None = None,
) -> SweepResult:
    """Do every run of ``plan`` on the Ray cluster at ``address``, ``jobs`` at once (all CPUs if 0).

    As :func:`fedcraft.studies.sweep.sweep`, with the same folders and the same bits: finished runs
    are skipped, interrupted ones resumed, and a run whose worker or node is lost continues from its
    last checkpoint elsewhere. ``out`` must be a folder that all nodes see under the same path.
    """
    with RayConnection(address) as connection:
        runner, room = _RayRunner(connection).run_all, jobs or connection.cpus
        return local_sweep(plan, out=out, jobs=room, observer=observer, runner=runner)


class _RayRunner:
    """Runs as Ray tasks, a few at once."""

    def __init__(self, connection: RayConnection) -> None:
        self._ray = connection.ray
        self._task = self._ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_attempt)

    def run_all(
        self, directories: Sequence[Path], jobs: int, progress: Progress, ended: Ended
    ) -> list[RunOutcome]:
        """Run every directory and return how each ended, in the given order.

        KeyboardInterrupt asks the tasks for a last checkpoint and is then raised again.
        """
        waiting, running = deque(directories), dict[Any, Path]()
        outcomes: dict[Path, RunOutcome] = {}
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    directory = waiting.popleft()
                    running[self._submit(directory)] = directory
                for ref in self._ready(running, _LOOK_SECONDS):
                    directory = running.pop(ref)
                    outcomes[directory] = self._outcome(ref, directory)
                    ended(outcomes[directory])
                for directory in running.values():
                    status = Run(directory).status
                    if "round" in status:
                        progress(directory, dict(status))
        except BaseException:
            self._interrupt(running)
            raise
        return [outcomes[directory] for directory in directories]

    def _submit(self, directory: Path) -> Any:
        ours = {name: value for name, value in os.environ.items() if name.startswith(_OURS)}
        return self._task.remote(str(directory.resolve()), os.getcwd(), ours, sys.path)

    def _ready(self, running: Mapping[Any, Path], seconds: float) -> list[Any]:
        found: list[Any] = self._ray.wait(list(running), num_returns=1, timeout=seconds)[0]
        return found

    def _outcome(self, ref: Any, directory: Path) -> RunOutcome:
        try:
            answer = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            return RunOutcome(directory, f"the task was lost: {error}")
        return RunOutcome(directory, answer["error"], answer.get("busy", False))

    def _interrupt(self, running: Mapping[Any, Path]) -> None:
        """Ask the tasks for a last checkpoint, as Ctrl-C would, and wait for them to end."""
        for ref in running:
            self._ray.cancel(ref)
        deadline = time.monotonic() + _PATIENCE
        left = dict(running)
        while left and time.monotonic() < deadline:
            for ref in self._ready(left, _LOOK_SECONDS):
                del left[ref]


def _attempt(directory: str, place: str, ours: dict[str, str], paths: list[str]) -> dict[str, Any]:
    """Do one run on this node, as a local worker would."""
    from fedcraft.studies.child import attempt

    if not Path(directory).is_dir():
        return {
            "error": f"{directory} does not exist on node {socket.gethostname()}: the folder of a "
            "sweep must be one that all nodes share"
        }
    os.environ.update(ours)
    sys.path += [path for path in paths if path not in sys.path]
    # The folder in which the user started the sweep, so that relative paths mean the same.
    with chdir(place) if Path(place).is_dir() else nullcontext():
        return attempt(Path(directory), lambda message: None)
