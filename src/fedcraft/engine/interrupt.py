"""Ctrl-C and SIGTERM end a run between two clients, not in the middle of a file."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from fedcraft.console import say_stopping


class Halt(BaseException):
    """The user stopped the run during a phase; the phase does not count, the server is unchanged.

    A ``BaseException``, so that client code does not catch it.
    """


class Interrupted(KeyboardInterrupt):
    """The user ended the run; ``directory`` (if there is one) holds a checkpoint to resume from.

    A ``KeyboardInterrupt``, so that ``except Exception`` around a run does not swallow it.
    """

    def __init__(self, round_number: int, directory: Path | None) -> None:
        kept = f"; resume from {directory}" if directory else "; without a directory it is lost"
        super().__init__(f"interrupted after round {round_number}{kept}")
        self.round = round_number
        self.directory = directory


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether the user asked to stop.

    A second Ctrl-C is an ordinary KeyboardInterrupt. Outside the main thread, where Python
    receives no signals, the function always returns False.
    """
    asked = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()
        say_stopping()

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, on_signal)
        yield asked.is_set
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
