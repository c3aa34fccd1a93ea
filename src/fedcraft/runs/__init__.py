"""The run directory: written, sealed, read and compared in one place."""

from fedcraft.runs.find import find_runs
from fedcraft.runs.run import Run

__all__ = ["Run", "find_runs"]
