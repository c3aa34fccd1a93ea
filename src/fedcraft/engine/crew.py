"""Who does the units of a phase: this process alone, or a crew of workers."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

from fedcraft.engine.bench import Bench
from fedcraft.engine.job import Command
from fedcraft.errors import ClientError

__all__ = ["Crew", "Halt", "SerialCrew", "client_error"]


class Halt(BaseException):
    """The user asked for an end in the middle of a phase; the phase is void, the server untouched.

    A ``BaseException``, so that no client code swallows it.
    """


class Crew(Protocol):
    """Does every unit of a phase once; where and when, and in which order, has no influence."""

    size: int

    def run(self, command: Command, units: Sequence[int]) -> None:
        """Return when all units are done; the first ones should be the longest."""

    def pids(self) -> list[int]:
        """Return the worker processes beside this one."""

    def close(self) -> None:
        """End the workers."""


class SerialCrew:
    """One unit after the other, in this process."""

    size = 1

    def __init__(self, bench: Bench, halted: Callable[[], bool]) -> None:
        self._bench, self._halted = bench, halted

    def run(self, command: Command, units: Sequence[int]) -> None:
        for unit in units:
            if command.voidable and self._halted():
                raise Halt
            try:
                self._bench.do(command, unit)
            except Exception as error:
                subject = self._bench.subject(command, unit)
                text = traceback.format_exc()
                raise client_error(text, subject, command.round, command.kind) from error

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        pass


def client_error(
    text: str, client: int | None, round_index: int, kind: str = "evaluate"
) -> ClientError:
    """Return the error of a client's own code: its traceback first, then who and when."""
    several = "a group of clients" if kind == "group" else "an evaluation shard"
    whom = several if client is None else f"client {client}"
    return ClientError(f"{text.rstrip()}\n\n{whom} failed in round {round_index + 1}")
