"""The command line: it reads words, calls the other packages and prints."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    # Custom models are named by import path, and users expect the current folder to be on that
    # path, as it is for `python -m`.
    sys.path.append(os.getcwd())
    # Two torch threads per process on busy cores cost a factor of ten and more.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.showwarning = _show_warning
    from fedcraft.cli.app import app

    app()


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Return one line, without the source line of the warning, which does not help users."""
    from fedcraft.cli.console import error_console

    error_console().print(f"warning: {message}", style="yellow")
