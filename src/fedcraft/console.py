"""Where notes and progress go: standard error, as long as somebody reads it."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console

__all__ = ["notes"]


class _Notes(Console):
    """A console that falls silent when its reader leaves: the work matters more than its echo."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())  # or Python would fail once more when it ends
        os.close(nowhere)


def notes(**options: Any) -> Console:
    """Return a console on standard error for everything that is no result."""
    return _Notes(stderr=True, **options)
