"""The console for notes and progress: standard error, while somebody reads it."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console

__all__ = ["notes"]


class _Notes(Console):
    """A console that stops writing when its reader closes the pipe, so that the work continues."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())  # or Python would fail once more when it ends
        os.close(nowhere)


def notes(**options: Any) -> Console:
    """Return a console on standard error for everything that is not a result."""
    return _Notes(stderr=True, **options)
