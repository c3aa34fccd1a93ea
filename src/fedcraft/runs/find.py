"""Finding runs: run directories and stored studies in and below folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedcraft.config.paths import at_home
from fedcraft.errors import DataError
from fedcraft.runs.directory import CONFIG_FILE
from fedcraft.runs.run import Run
from fedcraft.runs.study import Study, is_study

_NOT_RUNS = {"checkpoints", "states", ".git", "__pycache__"}


def find_runs(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Run]:
    """Return every run in or below ``paths``, each once, in the order of their paths.

    Raises:
        DataError: a path does not exist, or no run was found anywhere.
    """
    roots = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found = list({run: None for root in roots for run in _runs_below(at_home(root))})
    if not found:
        names = ", ".join(str(root) for root in roots) or "an empty list"
        raise DataError(
            f"paths should hold run directories, but no {CONFIG_FILE} was found in or below "
            f"{names}. Give the folder that `fedcraft run --out` wrote."
        )
    return found


def run_folders(root: Path) -> list[Path]:
    """Return the folders in and below ``root`` that hold a configuration or a stored study."""
    return [f for f in _folders(root) if (f / CONFIG_FILE).is_file() or is_study(f)]


def _folders(root: Path) -> Iterator[Path]:
    for folder, children, _ in os.walk(root.resolve()):
        children[:] = sorted(set(children) - _NOT_RUNS)
        yield Path(folder)


def _runs_below(root: Path) -> list[Run]:
    if not root.is_dir():
        raise DataError(
            f"{root} should be a run directory or a folder of runs, but it is not a folder."
        )
    return [run for folder in _folders(root) for run in runs_in(folder)]


def runs_in(folder: Path) -> list[Run]:
    """Return the run, or the runs of the stored study, that a folder itself holds."""
    run = Run(folder)
    if run.is_run:  # the configuration of a sweep names no method
        return [run]
    return Study(folder).runs() if is_study(folder) else []
