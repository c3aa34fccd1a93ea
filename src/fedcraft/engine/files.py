"""Writing files so that nobody, not even a run back from a crash, ever sees half of one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["read_json", "sync", "sync_directory", "write_atomically", "write_json"]


def sync(path: Path) -> None:
    """Force a file's content to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_directory(path: Path) -> None:
    """Force a directory's entries (creations, renames) to the disk."""
    sync(path)


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace ``path`` by ``content``: readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def write_json(path: Path, content: Any, *, durable: bool = True) -> None:
    """Write readable JSON atomically."""
    text = json.dumps(content, indent=2, allow_nan=False)
    write_atomically(path, text.encode() + b"\n", durable=durable)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
