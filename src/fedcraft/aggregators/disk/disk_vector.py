"""A flat vector whose tensors are in a safetensors file."""

from __future__ import annotations

import hashlib
import json
import math
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedcraft.errors import InputError

Shapes = Mapping[str, tuple[int, ...]]
_DTYPES = {"F32": torch.float32, "F64": torch.float64}
_HEADER_BYTES = 8
_DIGEST_KEY = "fedcraft.digest"
_DIGEST_BYTES = 16
_NO_DIGEST = "0" * 2 * _DIGEST_BYTES  # a placeholder until the data are written


@dataclass(frozen=True)
class DiskVector:
    """Named tensors of one type, read as one vector in the order of ``shapes``.

    ``positions`` are the bytes of the file at which the tensors begin; ``digest`` is that of the
    data, if this package wrote the file.
    """

    path: Path
    dtype: torch.dtype
    shapes: Shapes
    positions: Mapping[str, int]
    digest: str = ""

    def read(self, start: int, stop: int) -> Tensor:
        """The coordinates from ``start`` up to ``stop``."""
        values = np.empty(stop - start, self._kind)
        for begin, end, position in self._runs_between(start, stop):
            part = np.fromfile(self.path, self._kind, count=end - begin, offset=position)
            if len(part) != end - begin:
                raise InputError(f"{self.path}: the file is shorter than its header says")
            values[begin - start : end - start] = part
        return torch.from_numpy(values)

    def in_order(self, names: Iterable[str]) -> DiskVector:
        """The same tensors, read in another order."""
        return replace(self, shapes={name: self.shapes[name] for name in names})

    def clone(self) -> DiskVector:
        """Return the vector itself: the file does not change."""
        return self

    @property
    def _kind(self) -> np.dtype[Any]:
        return np.dtype(str(self.dtype).removeprefix("torch."))

    @cached_property
    def _runs(self) -> tuple[list[int], list[int]]:
        """Return where contiguous parts begin, in coordinates and in bytes, and the end."""
        begins, positions = [], []
        start, free = 0, -1
        for name, shape in self.shapes.items():
            size, position = math.prod(shape), self.positions[name]
            if position != free:
                begins.append(start)
                positions.append(position)
            start, free = start + size, position + size * self.dtype.itemsize
        return [*begins, start], positions

    def _runs_between(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        begins, positions = self._runs
        run = bisect_right(begins, start) - 1
        while start < stop:
            end = min(stop, begins[run + 1])
            yield start, end, positions[run] + (start - begins[run]) * self.dtype.itemsize
            start, run = end, run + 1


def open_vector(path: Path) -> DiskVector:
    """Read a file's header; its tensors must be of one float type."""
    try:
        with safe_open(path, framework="pt") as file:  # checks the header against the file's size
            names, about = list(file.keys()), file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from error
    with path.open("rb") as raw:
        length = int.from_bytes(raw.read(_HEADER_BYTES), "little")
        header = json.loads(raw.read(length))
    kinds = {header[name]["dtype"] for name in names}
    if len(kinds) != 1 or not kinds <= set(_DTYPES):
        raise InputError(f"{path}: expected tensors of one type, F32 or F64, found {sorted(kinds)}")
    names.sort(key=lambda name: header[name]["data_offsets"][0])
    return DiskVector(
        path,
        _DTYPES[kinds.pop()],
        {name: tuple(header[name]["shape"]) for name in names},
        {name: _HEADER_BYTES + length + header[name]["data_offsets"][0] for name in names},
        about.get(_DIGEST_KEY, ""),
    )


def write_vector(
    path: Path, shapes: Shapes, dtype: torch.dtype, pieces: Iterable[Tensor]
) -> DiskVector:
    """Write a vector that comes in pieces, with the digest of its data in the header."""
    header = _header(shapes, dtype)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with path.open("wb") as file:
        file.write(header)
        for piece in pieces:
            data = piece.numpy().tobytes()
            digest.update(data)
            file.write(data)
        file.seek(header.index(_NO_DIGEST.encode()))
        file.write(digest.hexdigest().encode())
        file.flush()
        os.fsync(file.fileno())
    return open_vector(path)


def _header(shapes: Shapes, dtype: torch.dtype) -> bytes:
    code = next(code for code, known in _DTYPES.items() if known == dtype)
    entries: dict[str, Any] = {"__metadata__": {_DIGEST_KEY: _NO_DIGEST}}
    position = 0
    for name, shape in shapes.items():
        end = position + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": code, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # the format aligns its data to eight bytes
    return len(text).to_bytes(_HEADER_BYTES, "little") + text
