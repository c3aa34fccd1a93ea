"""Builds parts from a name, import path, class or object; suggests names; optional modules."""

from __future__ import annotations

import copy
import difflib
import importlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import NoneType
from typing import Any

from fedcraft.errors import FedcraftError, InputError, MissingExtraError, kinds_of, require_types


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` if a known name is similar, else nothing."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    near = near or difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.7)
    near = near or [longer for longer in names if len(name) > 1 and name in longer]
    return f" Did you mean {near[0]!r}?" if near else ""


def build(
    what: str, base: type, table: Mapping[str, str], name: Any, params: Mapping[str, Any]
) -> Any:
    """Build the ``base`` that ``table`` lists under ``name``, or that is ``package.module:Class``.

    ``name`` may also be a class, or an object without further parameters, which is copied. ``what``
    names the argument in errors.
    """
    if isinstance(name, base) and not params:
        return copy.deepcopy(name)
    kind = find(what, table, name) if isinstance(name, str) else name
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise InputError(f"{what}: expected a kind of {base.__name__}, found {name!r}")
    given = {key: _none_or(value, kind, key) for key, value in params.items()}
    require_types(kind, given)
    try:
        return kind(**given)
    except TypeError as error:
        require_known(f"{what} {name!r}", params, parameters_of(kind))
        raise InputError(f"{what} {name!r}: {error}") from error


def _none_or(value: Any, kind: type, name: str) -> Any:
    """Return None for the text "none" where None is allowed: a file cannot say it otherwise."""
    text = isinstance(value, str) and value.lower() == "none"
    return None if text and NoneType in kinds_of(kind, name) else value


def parameters_of(kind: type) -> set[str]:
    """Return the keyword parameters of a class, including those it passes on to its bases."""
    found: set[str] = set()
    for base in kind.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        found |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        found |= {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD} - {"self"}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def require_known(
    what: str,
    given: Iterable[str],
    taken: Iterable[str],
    error: type[FedcraftError] = InputError,
) -> None:
    """Raise an error about the first parameter that is not among those ``what`` takes."""
    known = sorted(taken)
    foreign = sorted(set(given) - set(known))
    if foreign:
        raise error(
            f"{what} takes no parameter {foreign[0]!r}.{did_you_mean(foreign[0], known)} "
            f"It takes {', '.join(known) or 'none'}."
        )


def require_keys(table: str, given: Iterable[str], options: type[Any]) -> None:
    """Raise an error about the first key of a table that is not a field of its ``options``."""
    known = [option.name for option in fields(options)]
    for key in given:
        if key not in known:
            raise InputError(f"{table}: unknown key {key!r}.{did_you_mean(key, known)}")


def find(what: str, table: Mapping[str, str], name: str) -> Any:
    """Return what ``table`` lists under ``name``, or what is found at ``package.module:Name``."""
    path = table.get(name, name)
    module, colon, attribute = path.partition(":")
    if not colon:
        raise InputError(
            f"{what}: unknown name {name!r}.{did_you_mean(name, table)} Known: {', '.join(table)}, "
            "or package.module:Name for a custom one."
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # TypeError: "./file"
        raise InputError(
            f"{what}: {name!r} cannot be imported from here ({error}); expected "
            "package.module:Name of something on the Python path."
        ) from error


def optional(module: str, extra: str, package: str = "") -> Any:
    """Return a module that comes with an extra; the error for a missing one names the extra.

    ``package`` is what pip calls it, if that is not the first part of the module's name.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(package or module.partition(".")[0], extra) from error
