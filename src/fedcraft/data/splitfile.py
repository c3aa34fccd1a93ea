"""A split on disk: index arrays and a short description in one ``.npz`` without pickle."""

from __future__ import annotations

import json
import os
import secrets
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcraft.errors import DataError

__all__ = ["read", "write"]

_FORMAT = 1
_ABOUT = {"hash": str, "dataset": str, "fingerprint": str, "clients": int, "moved": int}


def write(path: Path, arrays: dict[str, NDArray[np.int64]], about: dict[str, Any]) -> Path:
    """Write to a temporary file beside ``path``, then rename: a reader never sees half a split."""
    text = json.dumps({"format": _FORMAT, **about})
    # Not mkstemp, whose files nobody else may read: a split is as open as the umask says.
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            np.savez(file, **{"about": np.array(text), **arrays})  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def read(path: Path) -> tuple[dict[str, NDArray[np.int64]], dict[str, Any]]:
    """Read what :func:`write` wrote; anything else is a :class:`DataError`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            content = {name: file[name] for name in file.files}
        about = json.loads(str(content.pop("about")))
    except FileNotFoundError as error:
        raise DataError(f"there is no split at {path}") from error
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not a readable split: {error}") from error
    wrong = [key for key, kind in _ABOUT.items() if not isinstance(about.get(key), kind)]
    if about.get("format") != _FORMAT or wrong:
        raise DataError(f"{path} is not a split of format {_FORMAT} (missing or wrong: {wrong})")
    loose = [name for name, array in content.items() if array.dtype != np.int64 or array.ndim != 1]
    if loose:
        raise DataError(f"{path} must hold flat int64 arrays, but {loose} are not")
    return content, about
