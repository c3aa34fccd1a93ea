"""The run directory: everything that writes, seals, reads and compares runs."""

from fedcraft.runs.find import find_runs
from fedcraft.runs.run import Run

__all__ = ["Run", "find_runs"]
