"""Where the files are that a configuration names, from whatever folder it is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedcraft.data.table import TABLES

__all__ = ["at_home", "lasting_root", "located"]


def at_home(path: str | Path) -> Path:
    """Return a path with ``~`` replaced as a shell does: a home that nobody has stays."""
    return Path(os.path.expanduser(path))


def located(dataset: str, root: Any) -> str:
    """Return the path of a user's own table: in ``root`` if it is there, else from here."""
    if not _in_root(dataset, root):
        return dataset
    return str(Path(root, dataset))


def lasting_root(dataset: str, root: str | None) -> str | None:
    """Return the data_root with which the same data are found from any other folder.

    The name of a table stays as it was given, because the name of a run depends on it.
    """
    relative = Path(dataset).suffix in TABLES and not Path(dataset).is_absolute()
    if relative and not _in_root(dataset, root):
        return str(Path.cwd())
    return None if root is None else str(Path(root).absolute())


def _in_root(dataset: str, root: Any) -> bool:
    table = Path(dataset).suffix in TABLES and isinstance(root, str)
    return table and Path(root, dataset).is_file()
