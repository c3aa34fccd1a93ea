"""Decoded arrays on disk: written once, checksummed once, then opened memory-mapped.

A cache entry is a folder of ``.npy`` files and a ``meta.json`` with each file's size, time stamp
and SHA-256. While size and time stamp still match, the content is trusted; if not, it is hashed
again, and an entry that fails is thrown away and built anew. Several processes may build the same
entry at once: the first to finish wins, and the others take what it wrote.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcraft.data.dataset import fingerprint_of
from fedcraft.data.decode import Arrays
from fedcraft.errors import DataError

__all__ = ["cache_folder", "cached", "key_of"]

_FORMAT = 1
_ATTEMPTS = 20
_PAUSE = 0.05  # seconds; between two processes' renames lies far less


def cache_folder(cache: str | Path | bool | None) -> Path | None:
    """Return the folder to cache in: the argument, FEDCRAFT_CACHE, or the user's cache folder."""
    if cache is False:
        return None
    if isinstance(cache, str | Path):
        return Path(cache)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FEDCRAFT_CACHE") or Path(home) / "fedcraft")


def key_of(name: str, files: list[Path]) -> str:
    """Return a folder name that changes when a source file is moved, resized or rewritten."""
    stats = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return f"{name}-{hashlib.sha256(repr((_FORMAT, stats)).encode()).hexdigest()[:16]}"


def cached(folder: Path, build: Callable[[], Arrays]) -> tuple[Arrays, str]:
    """Return the arrays of a cache entry and their fingerprint, building the entry if need be."""
    found = _read(folder)
    if found is not None:
        return found
    arrays = build()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _write(folder, arrays)
    except OSError as error:
        raise DataError(
            f"the decoded data cannot be cached in {folder.parent} ({error}); name another folder "
            "by cache= or FEDCRAFT_CACHE, or pass cache=False to keep them in memory only"
        ) from error
    written = _read_patiently(folder)
    if written is None:
        raise DataError(f"the cache entry {folder} cannot be read back right after it was written")
    return written


def _write(folder: Path, arrays: Arrays) -> None:
    # Not mkdtemp, whose folders nobody else may read: the entry is for all whom the umask lets in.
    temporary = folder.with_name(f".{folder.name}-{secrets.token_hex(8)}")
    try:
        temporary.mkdir()
        named: list[tuple[str, NDArray[Any] | None]] = list(
            zip(("inputs", "labels", "owners"), arrays[:3], strict=True)
        )
        files = {k: _save(temporary / f"{k}.npy", v) for k, v in named if v is not None}
        meta = {
            "format": _FORMAT,
            "fingerprint": fingerprint_of(*arrays[:3]),
            "owner_names": arrays.owner_names,
            "files": files,
        }
        (temporary / "meta.json").write_text(json.dumps(meta))
        _publish(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: Path, folder: Path) -> None:
    """Rename, unless another process has finished the same entry: then theirs is as good."""
    if _read(folder) is not None:
        return
    shutil.rmtree(folder, ignore_errors=True)
    try:
        os.replace(temporary, folder)
    except OSError:
        if _read_patiently(folder) is None:
            raise


def _save(path: Path, array: NDArray[Any]) -> dict[str, Any]:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    return {**_stamp(path), "sha256": _sha256(path)}


def _stamp(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(folder: Path) -> tuple[Arrays, str] | None:
    try:
        meta = json.loads((folder / "meta.json").read_text())
        arrays = {name: _open(folder / f"{name}.npy", seen) for name, seen in meta["files"].items()}
        names = tuple(meta["owner_names"])
        made = Arrays(arrays["inputs"], arrays["labels"], arrays.get("owners"), names)
        return made, str(meta["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _read_patiently(folder: Path) -> tuple[Arrays, str] | None:
    """Read an entry that another process may be about to replace by its own."""
    for _ in range(_ATTEMPTS):
        found = _read(folder)
        if found is not None:
            return found
        time.sleep(_PAUSE)
    return None


def _open(path: Path, seen: dict[str, Any]) -> NDArray[Any]:
    stamp = _stamp(path)
    if stamp["size"] != seen["size"]:
        raise ValueError(f"{path} has {stamp['size']} bytes, not {seen['size']}")
    if stamp["mtime_ns"] != seen["mtime_ns"] and _sha256(path) != seen["sha256"]:
        raise ValueError(f"{path} is not what was written")
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
