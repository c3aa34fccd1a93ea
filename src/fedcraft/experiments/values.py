"""What a configuration may hold: only what its file can hold too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["check_storable", "plain"]


def plain(value: Any) -> Any:
    """Return what a file gives back: plain numbers for numpy's, text for paths, lists, tables."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple | range) else value


def check_storable(key: str, value: Any) -> None:
    """Raise ValueError about the first value in a table that no file can hold."""
    if isinstance(value, Mapping):
        for inner, item in value.items():
            check_storable(f"{key}.{inner}", item)
    elif isinstance(value, list):
        for item in value:
            check_storable(key, item)
    elif not isinstance(value, str | int | float):
        raise ValueError(_not_storable(key, value))


def _not_storable(key: str, value: Any) -> str:
    table, _, inner = key.partition(".")
    found = "a function" if callable(value) else "nothing" if value is None else repr(value)
    instead = (
        f"fedcraft.method(..., {table}={{{inner!r}: ...}}) takes one, and fedcraft.engine.run "
        "trains with that method."
        if callable(value) and table in ("local", "aggregator", "server")
        else f"Change {key} or leave it out."
    )
    return f"{key}: a configuration file cannot hold {found}. {instead}"
