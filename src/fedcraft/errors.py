"""The exceptions of fedcraft: each says which argument, what was expected, what was found."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from functools import cache, partial
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class FedcraftError(Exception):
    """Base of every error that fedcraft raises on purpose."""


class InputError(FedcraftError, ValueError):
    """An argument has the wrong shape, type or value."""


class NonFiniteError(InputError):
    """A client's update, loss or weight holds NaN or Inf."""


class StateError(FedcraftError, ValueError):
    """A saved state does not fit the object that should load it."""


class ConfigError(FedcraftError, ValueError):
    """A configuration names an unknown key or an impossible value."""


class BusyError(ConfigError):
    """Another run is writing to this run directory."""


class DataError(FedcraftError, ValueError):
    """A data set is missing, incomplete, or not in the expected form."""


class CheckpointError(FedcraftError, ValueError):
    """A checkpoint is truncated, belongs to another run, or cannot be written."""


class DamageError(CheckpointError, DataError):
    """A file of a run has changed since the run wrote it."""


class ClientError(FedcraftError, RuntimeError):
    """The code of a client failed; the message contains its traceback."""

    client: int | None = None  # None where the failing client is not known


class MissingExtraError(FedcraftError, ImportError):
    """An optional dependency is not installed; the message contains the pip command."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed. It comes with an extra: pip install 'fedcraft[{extra}]'"
        )


def require(
    fine: bool, name: str, expected: str, found: object, error: type[FedcraftError] = InputError
) -> None:
    """Raise an error about the argument ``name`` unless ``fine``."""
    if not fine:
        raise error(f"{name}: expected {expected}, found {found!r}")


require_data = partial(require, error=DataError)


_OS_FIXES = {
    errno.EMFILE: "Allow more open files (ulimit -n 4096), or use fewer workers or --jobs",
    errno.ENFILE: "The whole system has too many open files; end other programs",
    errno.ENOSPC: "Free some space; the same command, or fedcraft resume, then continues",
    errno.EACCES: "Give another folder, or change its permissions",
    errno.EROFS: "Give a folder on a disk that can be written to",
}


def explain_os_error(error: OSError) -> str:
    """Return what the system refused, for which file if that is known, and what to do."""
    what = error.strerror or str(error) or type(error).__name__
    place = f"{error.filename}: " if error.filename else ""
    fix = _OS_FIXES.get(error.errno or 0)
    return f"{place}{what}. {fix}" if fix else f"{place}{what}"


def require_types(kind: type, params: Mapping[str, Any]) -> None:
    """Raise ``InputError`` about the first parameter that is not the number or flag it should be.

    A constructor would accept it, or fail with a ``TypeError`` that does not name it.
    """
    for name, value in params.items():
        kinds = kinds_of(kind, name)
        named = str in kinds or any(get_origin(found) is Literal for found in kinds)
        if (value is None and NoneType in kinds) or (isinstance(value, str) and named):
            continue
        found = [(words, fits(value)) for one, words, fits in _PLAIN if one in kinds]
        expected = " or ".join(words for words, _ in found)
        require(not found or any(fine for _, fine in found), name, expected, value)


def kinds_of(kind: type, name: str) -> tuple[Any, ...]:
    """Return the types that a parameter of a class, or of its bases, may have; none if unknown."""
    for base in kind.__mro__:
        hint = _hints(base).get(name)
        if hint is not None:
            return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return ()


@cache
def _hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(vars(kind)["__init__"])
    except (KeyError, NameError, TypeError):  # no hints, or one that only type checkers can read
        return {}


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _flag(value: object) -> bool:
    return isinstance(value, bool)


_PLAIN = (
    (float, "a number", _number),
    (int, "a whole number", _whole),
    (bool, "true or false", _flag),
)
