"""Memory that several processes see: flat tensors, and slots that carry small dicts of tensors.

The memory is that of an unnamed file (``memfd``), not of ``/dev/shm``, which containers limit to
64 MB and answer with a bus error. Pages that nobody touches cost nothing.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from math import prod
from multiprocessing.reduction import DupFd
from typing import Any

import torch
from torch import Tensor

from fedcraft.errors import StateError

__all__ = ["PrivateSlots", "SharedBytes", "SharedTensor", "Slots"]

_ALIGNMENT = 64  # torch's own: the bits of a matrix product can depend on it
_HEADER = 32768


class SharedBytes:
    """A run of bytes, inherited by forked processes and sent to others as a file descriptor."""

    def __init__(self, size: int) -> None:
        self.size = max(size, 1)
        self._map(_unnamed_file(self.size))

    def _map(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.view = mmap.mmap(descriptor, self.size)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            os.close(self.descriptor)  # the mapping has its own; tensors may outlive this object

    def __getstate__(self) -> dict[str, Any]:
        return {"size": self.size, "handle": DupFd(self.descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.size = state["size"]
        self._map(state["handle"].detach())

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> Tensor:
        """Return a tensor that lives in these bytes."""
        count = prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self.view, dtype=dtype, count=count, offset=offset).view(shape)


def _unnamed_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fedcraft")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    return descriptor


class SharedTensor:
    """Zeros in shared memory that keep their place when they are sent to another process."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self.bytes = SharedBytes(prod(shape) * dtype.itemsize)

    @property
    def tensor(self) -> Tensor:
        """Return the tensor; every call returns the same memory."""
        return self.bytes.tensor(self.shape, self.dtype)


class Slots:
    """``count`` places that each carry one dict of tensors (a client's state), or None.

    A slot is a length, a JSON description and the tensors' bytes. ``capacity`` bounds the bytes of
    one slot; it is address space, so it may be generous.
    """

    def __init__(self, count: int, capacity: int) -> None:
        self.capacity = -(-capacity // _ALIGNMENT) * _ALIGNMENT + _HEADER
        self.bytes = SharedBytes(count * self.capacity)

    def put(self, slot: int, content: Mapping[str, Tensor] | None) -> None:
        """Fill a slot; its earlier content is gone."""
        start = slot * self.capacity
        if content is None:
            self._write_header(start, b"")
            return
        header, places = _plan({name: value.detach() for name, value in content.items()})
        end = places[-1][1] + _size(places[-1][0]) if places else 0
        if end > self.capacity:
            raise StateError(
                f"a client's state of {end} bytes does not fit into the {self.capacity} that go "
                "between processes; use executor='serial' for this method"
            )
        for tensor, offset in places:
            self._place(tensor, start + offset).copy_(tensor)
        self._write_header(start, header)

    def get(self, slot: int) -> dict[str, Tensor] | None:
        """Return the content of a slot as views of the shared memory: clone what must last."""
        start = slot * self.capacity
        length = int.from_bytes(self.bytes.view[start : start + 8], "little")
        if not length:
            return None
        entries = json.loads(self.bytes.view[start + 8 : start + 8 + length])
        return {
            name: self.bytes.tensor(tuple(shape), getattr(torch, dtype), start + offset)
            for name, dtype, shape, offset in entries
        }

    def _write_header(self, start: int, header: bytes) -> None:
        self.bytes.view[start + 8 : start + 8 + len(header)] = header
        self.bytes.view[start : start + 8] = len(header).to_bytes(8, "little")

    def _place(self, tensor: Tensor, offset: int) -> Tensor:
        return self.bytes.tensor(tuple(tensor.shape), tensor.dtype, offset)


class PrivateSlots:
    """Slots of one process, for states of any size; the tensors lie in memory as in shared ones."""

    def __init__(self) -> None:
        self._contents: dict[int, dict[str, Tensor]] = {}

    def put(self, slot: int, content: Mapping[str, Tensor] | None) -> None:
        """Fill a slot; its earlier content is gone."""
        self._contents.pop(slot, None)
        if content is not None:
            self._contents[slot] = {name: _compact(value) for name, value in content.items()}

    def get(self, slot: int) -> dict[str, Tensor] | None:
        """Return the content of a slot: clone what must last."""
        return dict(self._contents[slot]) if slot in self._contents else None


def _compact(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _plan(content: Mapping[str, Tensor]) -> tuple[bytes, list[tuple[Tensor, int]]]:
    offset = _HEADER
    entries: list[tuple[str, str, list[int], int]] = []
    places = []
    for name, tensor in content.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries.append((name, dtype, list(tensor.shape), offset))
        places.append((tensor, offset))
        offset += -(-_size(tensor) // _ALIGNMENT) * _ALIGNMENT
    header = json.dumps(entries).encode()
    if len(header) > _HEADER - 8:
        raise StateError(
            f"a client's state of {len(entries)} tensors is too finely cut to go between "
            "processes; use executor='serial' for this method, or keep fewer, larger tensors"
        )
    return header, places


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
