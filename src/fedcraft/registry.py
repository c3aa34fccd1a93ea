"""Parts by name: a row of a table, or the place of a class of one's own."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

from fedcraft.errors import InputError, require_numbers

__all__ = ["build"]


def build(
    what: str, base: type, table: Mapping[str, str], name: str, params: Mapping[str, Any]
) -> Any:
    """Build the ``base`` that ``table`` lists under ``name``, or that is ``package.module:Class``.

    ``what`` names the argument in errors.
    """
    kind = _find(what, table, name)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise InputError(f"{what}: expected a kind of {base.__name__}, found {name!r}")
    try:
        return kind(**params)
    except TypeError as error:
        require_numbers(kind, params)
        raise InputError(f"{what} {name!r}: {error}") from error


def _find(what: str, table: Mapping[str, str], name: str) -> Any:
    path = table.get(name, name)
    module, colon, attribute = path.partition(":")
    if not colon:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InputError(
            f"{what}: unknown name {name!r}{hint} Known: {', '.join(table)}, or "
            "package.module:Class for your own"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # TypeError: "./file"
        raise InputError(
            f"{what}: {name!r} cannot be imported from here ({error}); expected "
            "package.module:Class of something on the Python path"
        ) from error
