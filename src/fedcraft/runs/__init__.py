"""The run directory: written, sealed, read and compared in one place."""

from fedcraft.runs.run import Run, find_runs

__all__ = ["Run", "find_runs"]
