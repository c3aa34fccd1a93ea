"""Reads the answers of clients, which can contain anything: arrays of the wanted kind, or None."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcraft.secure.agreement import Floats, Message
from fedcraft.secure.primitives import Bytes

_LARGEST = float(np.sqrt(np.finfo(np.float32).max))  # as in plain rounds
Shape = tuple[int, ...] | None


def octets(answer: Message, name: str, shape: Shape) -> Bytes | None:
    """Return an array of bytes."""
    return _read(answer, name, shape, "u", 1)


def counts(answer: Message, name: str, shape: Shape = None) -> list[int] | None:
    """Return a list of whole numbers from 0 to 2^31."""
    found = _read(answer, name, shape, "iu")
    fine = found is not None and found.ndim == 1 and ((found >= 0) & (found < 2**31)).all()
    return [int(n) for n in found] if found is not None and fine else None


def numbers(answer: Message, name: str, shape: Shape) -> Floats | None:
    """Return an array of numbers whose squares are finite in float32."""
    found = _read(answer, name, shape, "f")
    fine = found is not None and (np.abs(found) < _LARGEST).all()
    return found.astype(np.float64) if found is not None and fine else None


def by_client(answer: Message, name: str, size: int) -> dict[int, bytes]:
    """Return ``size`` bytes for each client that an answer is about."""
    about = counts(answer, "about")
    found = None if about is None else octets(answer, name, (len(about), size))
    if about is None or found is None:
        return {}
    return {j: part.tobytes() for j, part in zip(about, found, strict=True)}


def _read(
    answer: Message, name: str, shape: Shape, kinds: str, size: int | None = None
) -> NDArray[Any] | None:
    found = answer.get(name)
    if not isinstance(found, np.ndarray) or found.dtype.kind not in kinds:
        return None
    if size is not None and found.dtype.itemsize != size:
        return None
    return found if shape is None or found.shape == shape else None
