"""The error for a name that nobody knows, with the nearest name that somebody does."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NoReturn

from fedcraft.errors import DataError

__all__ = ["unknown"]


def unknown(kind: str, name: str, known: Iterable[str]) -> NoReturn:
    """Raise a :class:`DataError` that names what is known and what was probably meant."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise DataError(f"unknown {kind} {name!r}; there are {', '.join(names)}.{hint}")
