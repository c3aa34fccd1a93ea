"""Arrays for the page's script: whole numbers in base64, which take a third of their JSON."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_KINDS = (np.uint8, np.uint16, np.uint32)
_MISSING = {np.dtype(kind).itemsize: int(np.iinfo(kind).max) for kind in _KINDS}
_STEPS = 10_000


def packed(values: ArrayLike) -> dict[str, Any]:
    """Return whole numbers as base64 and their size in bytes; NaN becomes the largest number.

    >>> packed([1, 2, 300])
    {'bytes': 2, 'data': 'AQACACwB'}
    """
    array = np.asarray(values, dtype=float).ravel()
    known = array[np.isfinite(array)]
    most = int(known.max()) if known.size else 0
    size = next(size for size, missing in _MISSING.items() if most < missing)
    filled = np.where(np.isfinite(array), np.round(array), _MISSING[size])
    content = filled.astype(f"<u{size}").tobytes()
    return {"bytes": size, "data": base64.b64encode(content).decode()}


def shares(values: ArrayLike) -> dict[str, Any]:
    """Pack numbers between 0 and 1 in steps of 1/10,000."""
    return packed(np.asarray(values, dtype=float) * _STEPS)
