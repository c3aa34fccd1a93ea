"""Imports the optional packages of the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedcraft.errors import MissingExtraError

__all__ = ["needs"]


@contextmanager
def needs(package: str) -> Iterator[None]:
    """Turn a failed import of ``package`` into the pip command that installs it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise MissingExtraError(package, "report") from missing
