"""The command line. It reads words, calls the rooms below and prints; it decides nothing."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    # A user's own model is named by import path, and people expect the folder they stand in to be
    # on that path, as it is for `python -m`.
    sys.path.append(os.getcwd())
    # Two torch threads per process on busy cores cost a factor of ten and more.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.showwarning = _show_warning
    from fedcraft.cli.app import app

    app()


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """In one line: where in the source a warning comes from is of no use here."""
    from fedcraft.cli.console import error_console

    error_console().print(f"warning: {message}", style="yellow")
