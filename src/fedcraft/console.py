"""The console for notes and progress: standard error, while somebody reads it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from rich.console import Console

__all__ = ["notes", "say_stopping"]

_STOPPING = b"\nStopping ... (a checkpoint is saved; Ctrl-C again stops without one)\n"


class _Notes(Console):
    """A console that stops writing when its reader closes the pipe, so that the work continues."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())  # or Python would fail once more when it ends
        os.close(nowhere)


def say_stopping() -> None:
    """Answer Ctrl-C at once; a signal handler must not touch Python's buffered streams."""
    with suppress(OSError):
        os.write(2, _STOPPING)


def notes(**options: Any) -> Console:
    """Return a console on standard error for everything that is not a result."""
    return _Notes(stderr=True, **options)
