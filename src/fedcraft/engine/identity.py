"""What a method's parts are called in a checkpoint: the same text in every process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fedcraft.methods import Part

__all__ = ["signature", "stable"]


def signature(part: Part) -> str:
    """Return a part with its parameters as text that a resumed run can compare.

    Functions and objects print with their address, which no two processes share; they are named
    by module and qualified name instead, objects with their attributes.
    """
    return str(replace(part, params={key: stable(value) for key, value in part.params.items()}))


def stable(value: Any) -> Any:
    """Return a parameter as text, or as containers of text, that is the same in every process."""
    if isinstance(value, Mapping):
        return {key: stable(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(stable(item) for item in value)
    if isinstance(value, partial):
        return f"partial({stable([value.func, *value.args])}, {stable(value.keywords)})"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    if " at 0x" in str(value):
        return f"{stable(type(value))}({stable(getattr(value, '__dict__', {}))})"
    return value
