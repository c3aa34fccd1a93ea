"""Imports the optional packages of the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from fedcraft.errors import MissingExtraError

_PACKAGES = ("jinja2", "matplotlib", "pandas")


def missing_package() -> str | None:
    """Return a package that page and figures need and that is not installed, if there is one."""
    return next((name for name in _PACKAGES if find_spec(name) is None), None)


@contextmanager
def needs(package: str) -> Iterator[None]:
    """Turn a failed import of ``package`` into the pip command that installs it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise MissingExtraError(package, "report") from missing
