"""What a method's parts are called in a checkpoint: the same text in every process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fedcraft.methods import Part

__all__ = ["signature"]


def signature(part: Part) -> str:
    """Return a part with its parameters as text that a resumed run can compare.

    Functions and objects print with their address, which no two processes share; they are named
    by module and qualified name instead, objects with their attributes.
    """
    return str(replace(part, params={key: _stable(value) for key, value in part.params.items()}))


def _stable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _stable(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_stable(item) for item in value)
    if isinstance(value, partial):
        return f"partial({_stable([value.func, *value.args])}, {_stable(value.keywords)})"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    if " at 0x" in str(value):
        return f"{_stable(type(value))}({_stable(getattr(value, '__dict__', {}))})"
    return value
