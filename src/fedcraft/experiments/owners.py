"""How many owners the client column of a user's own table names."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from fedcraft.data.table import TABLES, owners_in
from fedcraft.errors import DataError
from fedcraft.experiments.places import located

__all__ = ["count_owners"]


def count_owners(dataset: Any, client: Any, root: Any = None) -> int | None:
    """Return the number of owners; None for what is no table at all, which is told elsewhere.

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
