"""The contract of an executor, and the serial executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fedcraft.engine.executors.job import Command
from fedcraft.engine.executors.units import UnitFailure, UnitRunner
from fedcraft.engine.interrupt import Halt
from fedcraft.errors import ClientError


class Executor(Protocol):
    """Runs every unit of a phase once; place, time and order do not affect the result."""

    size: int

    def run(self, command: Command, units: Sequence[int]) -> None:
        """Run all units and return; the longest should come first."""

    def pids(self) -> list[int]:
        """Return the ids of the worker processes."""

    def close(self) -> None:
        """End the workers."""


class SerialExecutor:
    """One unit after the other, in this process."""

    size = 1

    def __init__(self, runner: UnitRunner, stop_requested: Callable[[], bool]) -> None:
        self._runner, self._stop_requested = runner, stop_requested

    def run(self, command: Command, units: Sequence[int]) -> None:
        for unit in units:
            if command.discardable and self._stop_requested():
                raise Halt
            self._runner.run(command, unit)

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        pass


def raise_first(failures: Sequence[UnitFailure]) -> None:
    """Raise the failure of the client with the smallest id, whichever worker reported it."""
    if failures:
        client, text = min(failures, key=lambda failure: (failure.client is None, failure.client))
        error = ClientError(text)
        error.client = client
        raise error
