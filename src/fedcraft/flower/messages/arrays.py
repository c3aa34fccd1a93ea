"""The wire format of a model: named Flower arrays, read into a flat vector without a copy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
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
from fedcraft.flower.messages import keys
from fedcraft.updates import Grouping, Layout

_RUNNING = ("running_mean", "running_var", "num_batches_tracked")
_NUMPY = "numpy.ndarray"
_MAGIC = b"\x93NUMPY\x01\x00"


def open_array(array: Array) -> NDArray[Any]:
    """Return the numbers of an ``Array`` as a read-only view of its bytes.

    ``Array.numpy()`` copies them. Nothing is unpickled, and bytes that do not match their header
    are an ``InputError``.
    """
    if array.stype != _NUMPY:
        raise InputError(f"expected arrays serialised as {_NUMPY!r}, found {array.stype!r}")
    data = array.data
    try:
        if not data.startswith(_MAGIC):
            raise ValueError("expected NumPy's format, version 1.0, as np.save writes it")
        start = len(_MAGIC) + 2 + int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 2], "little")
        shape, fortran, dtype = _header(data[:start])
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        flat = np.frombuffer(data, dtype=dtype, offset=start)
        return flat.reshape(shape, order="F" if fortran else "C")
    except Exception as error:  # a client's bytes can fail in any way
        raise InputError(f"not a readable array: {error}") from error


@lru_cache(maxsize=4096)  # all clients send the same headers, and parsing one is slow
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    return np.lib.format.read_array_header_1_0(BytesIO(head[len(_MAGIC) :]))


def copy_tensors(record: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return copies of a record's arrays as tensors."""
    return {name: torch.from_numpy(open_array(array).copy()) for name, array in record.items()}


@dataclass(frozen=True)
class WireFormat:
    """Which of a model's named arrays are trainable, and their places in the flat vector.

    ``buffers`` are the other float arrays, which follow the buffer policy, and ``aliases`` the
    further names of tied parameters. The server keeps its own copy of every other array (counters,
    frozen parameters).
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
    ) -> WireFormat:
        """Read the format from the first arrays of a model.

        ``model`` or ``layout`` names the trainable arrays. Names of ``model`` may be longer than
        those of the arrays by a part: peft's state dicts leave out the adapter's name. Without
        both, see ``Strategy``.
        """
        shapes = {name: tuple(array.shape) for name, array in record.items()}
        dtypes = {name: np.dtype(array.dtype) for name, array in record.items()}
        floats = [name for name in record if dtypes[name].kind == "f"]
        if model is not None and layout is None:
            layout = _as_sent(Layout.from_module(model, group), shapes)
        if layout is None:
            learnt = [name for name in floats if not name.endswith(_RUNNING)]
            chosen = [name for name in learnt if not np.isinf(open_array(record[name])).any()]
            layout = Layout.from_tensors({name: shapes[name] for name in chosen}, group)
        _check_layout(layout, shapes, floats)
        trained = {slot.name for slot in layout.tensors}
        known = floats if model is None else dict(model.named_buffers())
        buffers = tuple(name for name in floats if name not in trained and name in known)
        aliases = {} if model is None else _aliases(model, trained)
        return cls(layout, shapes, dtypes, buffers, aliases)

    @property
    def dtype(self) -> torch.dtype:
        """float64 for a float64 model, float32 for every other."""
        wide = all(self.dtypes[slot.name] == np.float64 for slot in self.layout.tensors)
        return torch.float64 if wide else torch.float32

    @property
    def exact(self) -> bool:
        """Tell whether a model is sent with all digits of the server's vector."""
        ours = str(self.dtype).removeprefix("torch.")
        return all(self.dtypes[slot.name] == ours for slot in self.layout.tensors)

    @property
    def bytes(self) -> int:
        """Size of one message's arrays."""
        return sum(int(np.prod(s)) * self.dtypes[name].itemsize for name, s in self.shapes.items())

    @property
    def digest(self) -> str:
        """A hash of the layout's order, which server and client must share to exchange rows."""
        slots = " ".join(f"{slot.name}{list(slot.shape)}" for slot in self.layout.tensors)
        return sha256(slots.encode()).hexdigest()[:16]

    @property
    def kept(self) -> set[str]:
        """The arrays that never change: neither trainable nor buffers."""
        trained = {slot.name for slot in self.layout.tensors}
        return self.shapes.keys() - trained - {*self.buffers, *self.aliases}

    def flatten(self, record: Mapping[str, Array]) -> Tensor:
        """Return the trainable arrays of a record as one vector."""
        vector = torch.empty(self.layout.dimension, dtype=self.dtype)
        self.read_model(record, vector)
        return vector

    def read_model(
        self, record: Mapping[str, Array], out: Tensor, theta: Tensor | None = None
    ) -> None:
        """Write a model into ``out``, or ``theta`` minus the model, straight from the bytes."""
        row = out.numpy()
        start = None if theta is None else theta.numpy()
        for slot in self.layout.tensors:
            flat = self.view(record, slot.name).reshape(-1)
            place = slice(slot.start, slot.stop)
            if start is None:
                row[place] = flat
            else:
                np.subtract(start[place], flat, out=row[place])

    def read_update(self, record: Mapping[str, Array], out: Tensor) -> None:
        """Write an update that :meth:`pack_update` packed into ``out``."""
        row = out.numpy()
        row[:] = _checked(keys.ROW, record[keys.ROW], row.shape, row.dtype)

    def read_buffers(self, record: Mapping[str, Array], names: Iterable[str]) -> dict[str, Tensor]:
        """Return copies of buffers."""
        return {name: torch.from_numpy(self.view(record, name).copy()) for name in names}

    def view(self, record: Mapping[str, Array], name: str) -> NDArray[Any]:
        """Return one array of a record, whose shape and dtype must be those of the broadcast."""
        if name not in record:
            raise InputError(f"array {name!r} is missing")
        return _checked(name, record[name], self.shapes[name], self.dtypes[name])

    def pack_model(
        self, theta: Tensor, others: Mapping[str, Array], buffers: Mapping[str, Tensor]
    ) -> ArrayRecord:
        """Return a whole model: theta, the buffers, and every other array as in ``others``."""
        values = theta.numpy()
        made = {
            slot.name: self._array(slot.name, values[slot.start : slot.stop])
            for slot in self.layout.tensors
        }
        made |= {name: self._array(name, b.numpy()) for name, b in buffers.items()}
        made |= {alias: made[name] for alias, name in self.aliases.items() if alias in self.shapes}
        return ArrayRecord({name: made.get(name, others[name]) for name in self.shapes})

    def pack_update(self, row: Tensor, buffers: Mapping[str, Tensor]) -> ArrayRecord:
        """Return a client's update as one array, and its buffers.

        Flower sends every array as separate objects, one request each, so one long array arrives
        much faster than a hundred short ones.
        """
        own = {name: self._array(name, b.numpy()) for name, b in buffers.items()}
        return ArrayRecord({keys.ROW: Array(row.numpy()), **own})

    def _array(self, name: str, values: NDArray[Any]) -> Array:
        return Array(np.asarray(values, dtype=self.dtypes[name]).reshape(self.shapes[name]))


def _checked(name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    found = open_array(array)
    if found.shape != shape:
        raise InputError(f"array {name!r}: expected shape {shape}, found {found.shape}")
    if found.dtype != dtype:
        raise InputError(f"array {name!r}: expected {dtype}, found {found.dtype.str}")
    return found


def _as_sent(layout: Layout, sent: Collection[str]) -> Layout:
    """Return a module's layout with every tensor under the name of its array."""
    slots = (replace(slot, name=_sent_name(slot.name, sent)) for slot in layout.tensors)
    return replace(layout, tensors=tuple(slots))


def _sent_name(name: str, sent: Collection[str]) -> str:
    """Return the one array that a parameter can be: itself, or its name without a part."""
    if name in sent:
        return name
    words = name.split(".")
    ends = range(len(words) + 1)
    shorter = {".".join(words[:first] + words[last:]) for last in ends for first in range(last)}
    found = [candidate for candidate in shorter if candidate in sent]
    return found[0] if len(found) == 1 else name


def _check_layout(
    layout: Layout, shapes: Mapping[str, tuple[int, ...]], floats: Collection[str]
) -> None:
    if not layout.tensors:
        raise InputError("layout: expected tensor names, found none; use Layout.from_module")
    names = [slot.name for slot in layout.tensors]
    for slot in layout.tensors:
        if slot.name not in floats:
            raise InputError(f"initial_arrays: no float array is called {slot.name!r}")
        if names.count(slot.name) > 1:
            raise InputError(
                f"model: more than one trainable parameter could be the array {slot.name!r}; "
                "freeze the others (of peft, all but one adapter), or give a layout"
            )
        if shapes[slot.name] != slot.shape:
            raise InputError(
                f"initial_arrays: {slot.name!r} has shape {shapes[slot.name]}, the layout "
                f"expects {slot.shape}"
            )


def _aliases(model: nn.Module, trained: Collection[str]) -> dict[str, str]:
    """Map the further names of tied parameters to the name under which they are trained."""
    named = dict(model.named_parameters(remove_duplicate=False))
    first = {id(named[name]): name for name in trained if name in named}
    return {
        name: first[id(parameter)]
        for name, parameter in named.items()
        if name not in trained and id(parameter) in first
    }
