"""The exceptions of fedcraft: each says which argument, what was expected, what was found."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from functools import partial
from numbers import Real
from types import NoneType
from typing import Any, get_args, get_type_hints


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


def require_numbers(kind: type, params: Mapping[str, Any]) -> None:
    """Raise ``InputError`` about the first parameter that should be a number and is not.

    For a ``TypeError`` from a constructor, which does not say what was compared to what.
    """
    try:
        declared = get_type_hints(kind.__init__)  # type: ignore[misc]
    except NameError:  # a hint that only type checkers can read
        return
    for name, value in params.items():
        kinds = {declared.get(name), *get_args(declared.get(name))}
        fine = isinstance(value, Real) or (value is None and NoneType in kinds)
        require(fine or not kinds & {int, float}, name, "a number", value)
