"""How many owners the client column of a user's own table names."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from fedcraft.data.table import TABLES, owners_in
from fedcraft.errors import DataError

__all__ = ["count_owners"]


def count_owners(dataset: Any, client: Any) -> int | None:
    """Return the number of owners; None for what is no table at all, which is told elsewhere.

    Raises ValueError, as the other checks of a configuration do, if the table cannot be used.
    """
    names = isinstance(dataset, str) and isinstance(client, str)
    if not names or Path(dataset).suffix not in TABLES or not Path(dataset).is_file():
        return None
    file = Path(dataset).stat()
    try:
        return _counted(dataset, client, (file.st_ino, file.st_mtime_ns, file.st_size))
    except DataError as error:
        raise ValueError(f"dataset: {error}.") from None


@lru_cache(maxsize=16)  # a grid asks once per point
def _counted(path: str, client: str, _version: tuple[int, ...]) -> int:
    return owners_in(path, client)
