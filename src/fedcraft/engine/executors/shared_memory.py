"""Memory shared by several processes: flat tensors, and slots for small dicts of tensors.

The memory is that of an unnamed file (``memfd``), not of ``/dev/shm``, which containers limit to
64 MB, beyond which a process dies of a bus error. Untouched pages cost nothing.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import prod
from multiprocessing.reduction import DupFd
from typing import Any

import torch
from torch import Tensor

from fedcraft.errors import StateError

_ALIGNMENT = 64  # as in torch: the bits of a matrix product can depend on it
_HEADER = 32768


class SharedBytes:
    """Zeroed bytes, inherited by forked processes and sent to others as a file descriptor."""

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

    def tensor(self, shape: Iterable[int], dtype: torch.dtype, offset: int = 0) -> Tensor:
        """Return a tensor in these bytes."""
        sides = tuple(shape)
        count = prod(sides)
        if not count:
            return torch.empty(sides, dtype=dtype)
        return torch.frombuffer(self.view, dtype=dtype, count=count, offset=offset).view(sides)


def _unnamed_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fedcraft")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    return descriptor


class Regions:
    """Regions of shared memory in a fixed order: new ones, or those made by another process."""

    def __init__(self, regions: Iterable[SharedBytes] = ()) -> None:
        self.regions = list(regions)
        self._taken = 0

    def take(self, size: int) -> SharedBytes:
        """Return the next region."""
        if self._taken == len(self.regions):
            self.regions.append(SharedBytes(size))
        self._taken += 1
        return self.regions[self._taken - 1]

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the next region as a tensor."""
        return self.take(prod(shape) * dtype.itemsize).tensor(shape, dtype)


class Slots:
    """``count`` places that each hold one dict of tensors (a client's state), or None.

    A slot is a length, a JSON description and the tensors' bytes. ``capacity`` bounds the bytes of
    one slot; it is address space, so it may be generous.
    """

    def __init__(self, count: int, capacity: int, regions: Regions) -> None:
        self.capacity = _aligned(capacity) + _HEADER
        self._bytes = regions.take(count * self.capacity)

    def put(self, slot: int, content: Mapping[str, Tensor] | None) -> None:
        """Fill a slot; its earlier content is gone."""
        start = slot * self.capacity
        if content is None:
            self._write_header(start, b"")
            return
        entries, end = [], _HEADER
        for name, tensor in content.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            entries.append((name, dtype, list(tensor.shape), end))
            end += _aligned(tensor.numel() * tensor.element_size())
        header = json.dumps(entries).encode()
        self._check(len(entries), len(header), end)
        for tensor, (_, _, shape, offset) in zip(content.values(), entries, strict=True):
            self._bytes.tensor(shape, tensor.dtype, start + offset).copy_(tensor.detach())
        self._write_header(start, header)

    def get(self, slot: int) -> dict[str, Tensor] | None:
        """Return the content of a slot as views of the shared memory: clone what must last."""
        start = slot * self.capacity
        length = int.from_bytes(self._bytes.view[start : start + 8], "little")
        if not length:
            return None
        entries = json.loads(self._bytes.view[start + 8 : start + 8 + length])
        return {
            name: self._bytes.tensor(shape, getattr(torch, dtype), start + offset)
            for name, dtype, shape, offset in entries
        }

    def _check(self, tensors: int, header: int, end: int) -> None:
        if header > _HEADER - 8:
            raise StateError(
                f"a client's state of {tensors} tensors has too many parts to be sent between "
                "processes; use executor='serial' for this method, or keep fewer, larger tensors"
            )
        if end > self.capacity:
            raise StateError(
                f"a client's state of {end} bytes exceeds the {self.capacity} that can be "
                "sent between processes; use executor='serial' for this method"
            )

    def _write_header(self, start: int, header: bytes) -> None:
        self._bytes.view[start + 8 : start + 8 + len(header)] = header
        self._bytes.view[start : start + 8] = len(header).to_bytes(8, "little")


class PrivateSlots:
    """Slots of one process, for states of any size; tensors are aligned as in shared ones."""

    def __init__(self) -> None:
        self._contents: dict[int, dict[str, Tensor]] = {}

    def put(self, slot: int, content: Mapping[str, Tensor] | None) -> None:
        """Fill a slot; its earlier content is gone."""
        self._contents.pop(slot, None)
        if content is not None:
            self._contents[slot] = {
                name: tensor.detach().clone(memory_format=torch.contiguous_format)
                for name, tensor in content.items()
            }

    def get(self, slot: int) -> dict[str, Tensor] | None:
        """Return the content of a slot: clone what must last."""
        return dict(self._contents[slot]) if slot in self._contents else None


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
