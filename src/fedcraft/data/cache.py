"""Decoded arrays on disk: written once, checked at every use, opened memory-mapped.

A cache entry is a folder of ``.npy`` files and a ``meta.json`` with the SHA-256 of the arrays and
its own checksum. An entry that does not match is built again, with a warning. Several processes may
build the same entry at once: the first to finish wins, and the others take what it wrote.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedcraft.atomic import sync
from fedcraft.data.dataset import fingerprint_of
from fedcraft.data.decode import Arrays
from fedcraft.errors import DataError

_FORMAT = 2
_NAMES = ("inputs", "labels", "owners")
_STALE_SECONDS = 86_400.0  # no process takes that long to write an entry
_ATTEMPTS = 20
_PAUSE = 0.05  # seconds; far longer than between the renames of two processes


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
    """Return the arrays of a cache entry and their fingerprint, building the entry if necessary."""
    existed = folder.exists()  # checked first: another process may finish it meanwhile
    found = _read(folder)
    if found is not None:
        return found
    if existed:
        warnings.warn(
            f"{folder}: the cached data are damaged; they are decoded again", stacklevel=3
        )
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
    _sweep(folder)
    # Not mkdtemp, whose folders only their owner can read: an entry follows the umask.
    temporary = folder.with_name(f".{folder.name}-{secrets.token_hex(8)}")
    try:
        temporary.mkdir()
        for name, array in zip(_NAMES, arrays[:3], strict=True):
            if array is not None:
                np.save(temporary / f"{name}.npy", array, allow_pickle=False)
                sync(temporary / f"{name}.npy")
        about = {"fingerprint": fingerprint_of(*arrays[:3]), "owner_names": arrays.owner_names}
        (temporary / "meta.json").write_text(json.dumps({**about, "check": _check(about)}))
        _publish(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Delete parts of this entry that processes left which were killed long ago."""
    for stale in folder.parent.glob(f".{folder.name}-*"):
        if time.time() - stale.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(stale, ignore_errors=True)


def _publish(temporary: Path, folder: Path) -> None:
    """Rename, unless another process has finished the same entry: then use that one."""
    if _read(folder) is not None:
        return
    shutil.rmtree(folder, ignore_errors=True)
    try:
        os.replace(temporary, folder)
    except OSError:
        if _read_patiently(folder) is None:
            raise


def _read(folder: Path) -> tuple[Arrays, str] | None:
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        check, found = meta.pop("check"), [_open(folder / f"{name}.npy") for name in _NAMES]
        made = Arrays(found[0], found[1], found[2], tuple(meta["owner_names"]))
        intact = check == _check(meta) and meta["fingerprint"] == fingerprint_of(*made[:3])
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return (made, meta["fingerprint"]) if intact else None


def _read_patiently(folder: Path) -> tuple[Arrays, str] | None:
    """Read an entry that another process may be replacing."""
    for _ in range(_ATTEMPTS):
        found = _read(folder)
        if found is not None:
            return found
        time.sleep(_PAUSE)
    return None


def _open(path: Path) -> Any:
    """Return the array of a file, or None if the entry has no such file."""
    return np.load(path, mmap_mode="r", allow_pickle=False) if path.exists() else None


def _check(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()
