"""Cells that hold nothing: left alone, they would be numbered like a class or a client."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["missing"]


def missing(values: NDArray[Any]) -> int:
    """Return how many values are None, NaN, NaT, NA or blank text.

    >>> missing(np.array(["north", " ", None], object)), missing(np.array([1.0, np.nan]))
    (2, 1)
    """
    if values.dtype.kind in "OU":
        return sum(map(_is_nothing, values.ravel().tolist()))
    return int(np.count_nonzero(values != values))  # NaN and NaT alone differ from themselves


def _is_nothing(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    try:
        return value is None or bool(value != value)
    except TypeError:  # a comparison with pandas' NA is neither true nor false
        return True
