"""Flower's named arrays as one flat vector, read without a copy and without trust."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcraft.errors import InputError
from fedcraft.flower import keys
from fedcraft.updates import Grouping, Layout

__all__ = ["Wire", "open_array", "tensors"]

_RUNNING = ("running_mean", "running_var", "num_batches_tracked")
_NUMPY = "numpy.ndarray"
_MAGIC = b"\x93NUMPY\x01\x00"


def open_array(array: Array) -> NDArray[Any]:
    """Return the numbers of an ``Array`` as a read-only view of its bytes.

    ``Array.numpy()`` copies them. Nothing is unpickled, and bytes that are not what the header
    promises are an ``InputError``.
    """
    if array.stype != _NUMPY:
        raise InputError(f"expected arrays serialised as {_NUMPY!r}, found {array.stype!r}")
    try:
        return _open(array.data)
    except Exception as error:  # a stranger's bytes can fail in any way there is
        raise InputError(f"not a readable array: {error}") from error


def _open(data: bytes) -> NDArray[Any]:
    if not data.startswith(_MAGIC):
        raise ValueError("expected NumPy's own format, version 1.0, as np.save writes it")
    start = len(_MAGIC) + 2 + int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 2], "little")
    shape, fortran, dtype = _header(data[:start])
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    flat = np.frombuffer(data, dtype=dtype, offset=start)
    return flat.reshape(shape, order="F" if fortran else "C")


@lru_cache(maxsize=4096)  # all clients send the same headers, and parsing one is slow
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    return np.lib.format.read_array_header_1_0(BytesIO(head[len(_MAGIC) :]))


def tensors(record: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return copies of a record's arrays."""
    return {name: torch.from_numpy(open_array(array).copy()) for name, array in record.items()}


@dataclass(frozen=True)
class Wire:
    """How one model travels: which of its named arrays are geometry, and where they lie.

    ``buffers`` are the float arrays beside the geometry that have a policy, ``aliases`` the further
    names of tied parameters; every other array (counters, frozen parameters) is kept as the server
    has it.
    """

    layout: Layout
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype[Any]]
    buffers: tuple[str, ...]
    aliases: dict[str, str]

    @classmethod
    def of(
        cls,
        record: ArrayRecord,
        *,
        model: nn.Module | None = None,
        layout: Layout | None = None,
        group: Grouping = "layer",
    ) -> Wire:
        """Read the shape of a model from its first broadcast.

        With ``model`` or ``layout`` the geometry is what they name, otherwise every float array
        but BatchNorm's running statistics and masks with Inf, and a layer is a name up to its last
        dot.
        """
        shapes = {name: tuple(array.shape) for name, array in record.items()}
        dtypes = {name: np.dtype(array.dtype) for name, array in record.items()}
        floats = [name for name in record if dtypes[name].kind == "f"]
        if model is not None and layout is None:
            layout = Layout.from_module(model, group)
        if layout is None:
            chosen = [name for name in floats if _looks_trainable(name, record[name])]
            layout = Layout.from_tensors({name: shapes[name] for name in chosen}, group)
        geometry = {slot.name for slot in layout.tensors}
        _check_geometry(layout, shapes, floats)
        rest = [name for name in floats if name not in geometry]
        aliases = {} if model is None else _aliases(model, geometry)
        return cls(layout, shapes, dtypes, tuple(_with_policy(rest, model)), aliases)

    @property
    def dtype(self) -> torch.dtype:
        """float64 for a float64 model, float32 for every other."""
        wide = all(self.dtypes[slot.name] == np.float64 for slot in self.layout.tensors)
        return torch.float64 if wide else torch.float32

    @property
    def exact(self) -> bool:
        """Tell whether a model arrives as the server has it, and not rounded to fewer digits."""
        ours = str(self.dtype).removeprefix("torch.")
        return all(self.dtypes[slot.name] == ours for slot in self.layout.tensors)

    @property
    def bytes(self) -> int:
        """Size of one message's arrays."""
        return sum(int(np.prod(s)) * self.dtypes[name].itemsize for name, s in self.shapes.items())

    @property
    def digest(self) -> str:
        """What two sides must share for a row of one to be a row of the other."""
        slots = " ".join(f"{slot.name}{list(slot.shape)}" for slot in self.layout.tensors)
        return sha256(slots.encode()).hexdigest()[:16]

    def is_kept(self, name: str) -> bool:
        """Tell whether an array is neither geometry nor a buffer with a policy."""
        moving = {*self.buffers, *self.aliases, *(slot.name for slot in self.layout.tensors)}
        return name not in moving

    def flatten(self, record: Mapping[str, Array]) -> Tensor:
        """Return the geometry of a record as one vector."""
        vector = torch.empty(self.layout.dimension, dtype=self.dtype)
        self.read_row(record, vector)
        return vector

    def read_row(
        self, record: Mapping[str, Array], out: Tensor, theta: Tensor | None = None
    ) -> None:
        """Write a record's geometry into ``out``, or theta minus it, straight from the bytes."""
        row = out.numpy()
        start = None if theta is None else theta.numpy()
        for slot in self.layout.tensors:
            flat = self.view(record, slot.name).reshape(-1)
            place = slice(slot.start, slot.stop)
            if start is None:
                row[place] = flat
            else:
                np.subtract(start[place], flat, out=row[place])

    def read_buffers(
        self, record: Mapping[str, Array], names: Iterable[str] | None = None
    ) -> dict[str, Tensor]:
        """Return copies of buffers, by default of all that have a policy."""
        wanted = self.buffers if names is None else names
        return {name: torch.from_numpy(self.view(record, name).copy()) for name in wanted}

    def view(self, record: Mapping[str, Array], name: str) -> NDArray[Any]:
        """Return one array of a record, checked against the broadcast's shape and dtype."""
        if name not in record:
            raise InputError(f"array {name!r} is missing")
        return _checked(name, record[name], self.shapes[name], self.dtypes[name])

    def record(
        self, theta: Tensor, others: Mapping[str, Array], buffers: Mapping[str, Tensor]
    ) -> ArrayRecord:
        """Return a full broadcast: theta, the buffers, and all else as in ``others``."""
        values = theta.numpy()
        made = {
            slot.name: _array(values[slot.start : slot.stop], slot.shape, self.dtypes[slot.name])
            for slot in self.layout.tensors
        }
        made |= {n: _array(b.numpy(), self.shapes[n], self.dtypes[n]) for n, b in buffers.items()}
        made |= {alias: made[name] for alias, name in self.aliases.items() if alias in self.shapes}
        return ArrayRecord({name: made.get(name, others[name]) for name in self.shapes})

    def update_record(self, row: Tensor, buffers: Mapping[str, Tensor]) -> ArrayRecord:
        """Return what a client sends: its row as one array, and its buffers.

        Flower sends every array as objects of its own, a request each: one long array arrives much
        faster than a hundred short ones.
        """
        made = {keys.ROW: Array(row.numpy())}
        made |= {n: _array(b.numpy(), self.shapes[n], self.dtypes[n]) for n, b in buffers.items()}
        return ArrayRecord(made)

    def read_update(self, record: Mapping[str, Array], out: Tensor) -> None:
        """Write a row that :meth:`update_record` packed into ``out``."""
        row = out.numpy()
        row[:] = _checked(keys.ROW, record[keys.ROW], row.shape, row.dtype)


def _checked(name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    found = open_array(array)
    if found.shape != shape:
        raise InputError(f"array {name!r}: expected shape {shape}, found {found.shape}")
    if found.dtype != dtype:
        raise InputError(f"array {name!r}: expected {dtype}, found {found.dtype.str}")
    return found


def _array(values: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return Array(np.asarray(values, dtype=dtype).reshape(shape))


def _check_geometry(
    layout: Layout, shapes: Mapping[str, tuple[int, ...]], floats: Iterable[str]
) -> None:
    known = set(floats)
    if not layout.tensors:
        raise InputError("layout: it knows no tensor names; make it with Layout.from_module")
    for slot in layout.tensors:
        if slot.name not in known:
            raise InputError(f"initial_arrays: no float array is called {slot.name!r}")
        if shapes[slot.name] != slot.shape:
            raise InputError(
                f"initial_arrays: {slot.name!r} has shape {shapes[slot.name]}, the layout "
                f"expects {slot.shape}"
            )


def _looks_trainable(name: str, array: Array) -> bool:
    return not name.endswith(_RUNNING) and not bool(np.isinf(open_array(array)).any())


def _aliases(model: nn.Module, geometry: Collection[str]) -> dict[str, str]:
    """Map the further names of tied parameters to the one under which they are trained."""
    named = dict(model.named_parameters(remove_duplicate=False))
    first = {id(named[name]): name for name in geometry if name in named}
    return {
        name: first[id(parameter)]
        for name, parameter in named.items()
        if name not in geometry and id(parameter) in first
    }


def _with_policy(rest: list[str], model: nn.Module | None) -> list[str]:
    if model is None:
        return rest
    own = dict(model.named_buffers())
    return [name for name in rest if name in own]
