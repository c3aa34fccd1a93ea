"""The exceptions of fedcraft: each says which argument, what was expected, what was found."""

from __future__ import annotations

__all__ = [
    "BusyError",
    "CheckpointError",
    "ClientError",
    "ConfigError",
    "DataError",
    "FedcraftError",
    "InputError",
    "MissingExtraError",
    "NonFiniteError",
    "StateError",
    "require",
]


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
    """Another process is writing to this run directory."""


class DataError(FedcraftError, ValueError):
    """A data set is missing, torn, or not of the promised form."""


class CheckpointError(FedcraftError, ValueError):
    """A checkpoint is truncated, foreign, or cannot be written."""


class ClientError(FedcraftError, RuntimeError):
    """A client's own code failed; the message carries its traceback."""


class MissingExtraError(FedcraftError, ImportError):
    """An optional dependency is not installed; the message carries the pip command."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed. It comes with an extra: pip install 'fedcraft[{extra}]'"
        )


def require(fine: bool, name: str, expected: str, found: object) -> None:
    """Raise ``InputError`` about the argument ``name`` unless ``fine``."""
    if not fine:
        raise InputError(f"{name}: expected {expected}, found {found!r}")
