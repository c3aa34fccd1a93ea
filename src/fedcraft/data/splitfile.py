"""Files of splits: index arrays and a short description in one ``.npz`` without pickle."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcraft.errors import DataError

_FORMAT = 1
_ABOUT = {"hash": str, "dataset": str, "fingerprint": str, "clients": int, "moved": int}


def encode(arrays: dict[str, NDArray[np.int64]], about: dict[str, Any]) -> bytes:
    """Return the content of a split file, the same bytes for the same split."""
    content = io.BytesIO()
    text = json.dumps({"format": _FORMAT, **about})
    np.savez(content, **{"about": np.array(text), **arrays})  # type: ignore[arg-type]
    return content.getvalue()


def read(path: Path) -> tuple[dict[str, NDArray[np.int64]], dict[str, Any]]:
    """Return what :func:`encode` made; raise a :class:`DataError` for any other file."""
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
    wrong = [name for name, array in content.items() if array.dtype != np.int64 or array.ndim != 1]
    if wrong:
        raise DataError(f"{path} must hold flat int64 arrays, but {wrong} are not")
    return content, about
