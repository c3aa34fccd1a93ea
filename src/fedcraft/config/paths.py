"""The files that a configuration names: where they are, and how many owners a table has."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedcraft.data.table import TABLES, owners_in
from fedcraft.errors import ConfigError, DataError


def at_home(path: str | os.PathLike[str]) -> Path:
    """Return a path with ``~`` replaced as a shell does: ``~nobody`` stays."""
    return Path(os.path.expanduser(path))


def new_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder that ``out`` names; raise ``ConfigError`` if a file is in the way."""
    folder = at_home(path)
    there = next((place for place in (folder, *folder.parents) if place.exists()), Path("."))
    if not there.is_dir():
        raise ConfigError(
            f"out: expected a folder, but {there} is not one. Give the path of a new folder"
        )
    return folder


def located(dataset: str, root: Any) -> str:
    """Return the path of a user's table: in ``root`` if it is there, else relative."""
    if not _in_root(dataset, root):
        return dataset
    return str(Path(root, dataset))


def lasting_root(dataset: str, root: str | None) -> str | None:
    """Return the data_root with which the same data are found from any other folder.

    The name of a table is not changed, because the name of a run depends on it.
    """
    relative = Path(dataset).suffix in TABLES and not Path(dataset).is_absolute()
    if relative and not _in_root(dataset, root):
        return str(Path.cwd())
    return None if root is None else str(Path(root).absolute())


def count_owners(dataset: Any, client: Any, root: Any = None) -> int | None:
    """Return how many owners the column ``client`` of a table names; None if it is not a table.

    Raises ValueError, as the other checks of a configuration do, if the table cannot be used.
    """
    if not isinstance(dataset, str) or not isinstance(client, str):
        return None
    path = Path(located(dataset, root))
    if path.suffix not in TABLES or not path.is_file():
        return None
    file = path.stat()
    try:
        return _counted(str(path), client, (file.st_ino, file.st_mtime_ns, file.st_size))
    except DataError as error:
        raise ValueError(f"dataset: {error}.") from None


@lru_cache(maxsize=16)  # a grid asks once per point
def _counted(path: str, client: str, _version: tuple[int, ...]) -> int:
    return owners_in(path, client)


def _in_root(dataset: str, root: Any) -> bool:
    table = Path(dataset).suffix in TABLES and isinstance(root, str)
    return table and Path(root, dataset).is_file()
