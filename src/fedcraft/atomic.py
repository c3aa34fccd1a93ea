"""Writes files completely or not at all, even after a crash, and computes their digests."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def sync(path: Path) -> None:
    """Force a file's content, or a directory's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of the system, which says "No space left on device" without it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace ``path`` by ``content``: readers see the old file or the new one.

    A process that is killed while it writes leaves a temporary file, which :func:`sweep` deletes.
    """
    if path.exists() and not path.is_file():  # a device or a folder must not be replaced
        raise OSError(errno.EINVAL, "expected a file, but this is a folder or a device", str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path), temporary.open("wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


class AppendOnly:
    """A file that grows by whole pieces: a piece that does not fit on the disk leaves no trace."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self._file = path.open("ab", buffering=0)
        self._file.truncate(size)

    def write(self, content: bytes) -> None:
        """Append; the content is in the file when this returns."""
        try:
            with naming(self.path):
                self._append(content)
        except OSError:
            self._file.truncate(self.size)
            raise
        self.size += len(content)

    def _append(self, content: bytes) -> None:
        if self._file.write(content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        """Force the file to the disk."""
        with naming(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def sweep(directory: Path) -> None:
    """Delete the temporary files of killed processes; only the sole writer may call this."""
    for stale in (*directory.glob(".*.tmp"), *directory.glob("split.npz.*.tmp")):
        stale.unlink(missing_ok=True)


def to_json(content: Any) -> bytes:
    """Return readable JSON."""
    return json.dumps(content, indent=2, allow_nan=False).encode() + b"\n"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
