"""Aggregate client updates that lie in safetensors files, within a memory budget.

Only the m x m geometry is kept; the data are read in pieces: once for the Gram matrices, once for
the products with the last step, once for the weighted sum that is written to ``out``. A rule whose
work goes through its cohort's methods (average, config, craft, ...) gives the same result as in
memory, with one exception: where float64 updates nearly depend on each other, memory has the
singular values of the rows themselves, files only their Gram matrix, which knows squares. There
singular values below about 2 sqrt(m eps) = 3e-8 sqrt(m) of the largest are taken for zero, not
those below max(m, d_q) eps: such rows may count as dependent on disk and not in memory, and the
certificate's rank says which. The last step is remembered as the file it was written to: keep that
file until the next round is done.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedcraft.aggregators import Aggregator, Step
from fedcraft.aggregators.cohort import Cohort, RoundInput, Vector, without_nonfinite
from fedcraft.errors import InputError
from fedcraft.linalg import finite_products
from fedcraft.updates import ClientId, Grouping, Layout

__all__ = ["DiskVector", "aggregate_files"]

_DTYPES = {"F32": torch.float32, "F64": torch.float64}
_HEADER_BYTES = 8
_BYTES_PER_MB = 2**20
_CANCELLING = 100  # times shorter than its terms: two of float32's seven digits


def aggregate_files(
    aggregator: Aggregator,
    files: Sequence[str | Path],
    out: str | Path,
    *,
    weights: Sequence[float] | None = None,
    client_ids: Sequence[ClientId] | None = None,
    losses: Sequence[float] | None = None,
    steps: Sequence[float] | None = None,
    client_lr: float | None = None,
    group: Grouping = "layer",
    budget_mb: int = 256,
) -> Step:
    """Aggregate one safetensors file of updates per client into the file ``out``.

    Every file holds the same float32 or float64 tensors g_i = theta_t - theta_i. Peak memory beyond
    the interpreter's own is about ``budget_mb``, however large the model and however many layers.
    The step's direction is a ``DiskVector``: ``out`` is an ordinary safetensors file.
    """
    if not files:
        raise InputError("files: the cohort is empty; at least one client must take part")
    rows = [_open(Path(file)) for file in files]
    for row in rows[1:]:
        if row.shapes != rows[0].shapes or row.dtype != rows[0].dtype:
            raise InputError(f"{row.path}: its tensors differ from those of {rows[0].path}")
    layout = Layout.from_tensors(rows[0].shapes, group)
    stand_in = torch.empty(len(rows), layout.dimension, dtype=rows[0].dtype, device="meta")
    ids = [row.path.stem for row in rows] if client_ids is None else client_ids
    given = RoundInput(stand_in, weights, layout, ids, losses, steps, client_lr)
    cohort = FileCohort(
        **given.fields(), rows=tuple(rows), out=Path(out), budget=budget_mb * _BYTES_PER_MB
    )
    kept = without_nonfinite(cohort, drop=aggregator.nonfinite == "drop")
    try:
        return aggregator.aggregate_cohort(kept)
    except (NotImplementedError, RuntimeError, TypeError, AttributeError) as error:
        if "meta" not in str(error) and "DiskVector" not in str(error):
            raise
        name = type(aggregator).__name__
        raise InputError(f"aggregator: {name} needs the updates in memory; load them") from error


@dataclass(frozen=True)
class DiskVector:
    """A flat vector in the data part of a safetensors file."""

    path: Path
    offset: int
    dtype: torch.dtype
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def read(self, start: int, stop: int) -> Tensor:
        kind = np.dtype(str(self.dtype).removeprefix("torch."))
        position = self.offset + start * kind.itemsize
        values = np.fromfile(self.path, kind, count=stop - start, offset=position)
        if len(values) != stop - start:
            raise InputError(f"{self.path}: the file is shorter than its header says")
        return torch.from_numpy(values)

    def clone(self) -> DiskVector:
        """Itself: the file is the copy."""
        return self


@dataclass(frozen=True)
class FileCohort(Cohort):
    """A cohort whose rows are files; ``matrix`` only stands for their shape and dtype."""

    rows: tuple[DiskVector, ...] = ()
    out: Path = Path()
    budget: int = 0

    @cached_property
    def grams(self) -> Tensor:
        return finite_products(self._grams)

    @cached_property
    def _grams(self) -> Tensor:
        """The Gram matrices before any check: a row with NaN or Inf shows on their diagonal."""
        return torch.stack([self._gram(layer) for layer in range(len(self.layout))])

    def _gram(self, layer: int) -> Tensor:
        gram = torch.zeros(self.size, self.size, dtype=torch.float64)
        for start, stop in self._pieces(layer):
            block = self._block(start, stop)
            gram += block @ block.T
        if self.matrix.dtype == torch.float64 or bool(torch.isfinite(gram).all()):
            return gram
        return self.precise_gram(layer)  # squares of huge rows overflow

    def precise_gram(self, layer: int) -> Tensor:
        gram = torch.zeros(self.size, self.size, dtype=torch.float64)
        for start, stop in self._pieces(layer):
            block = self._block(start, stop).to(torch.float64)
            gram += block @ block.T
        return gram

    def finite_rows(self) -> Tensor:
        squares = torch.diagonal(self._grams, dim1=1, dim2=2)
        finite = torch.isfinite(squares).all(dim=0)
        for row in torch.nonzero(~finite).flatten().tolist():  # or its square overflows
            pieces = (self.rows[row].read(start, stop) for _, start, stop in self._all_pieces())
            finite[row] = all(bool(torch.isfinite(piece).all()) for piece in pieces)
        return finite

    def average_dots(self) -> Tensor:
        return self.grams @ self.weights

    @cached_property
    def square_norms(self) -> Tensor:
        return torch.diagonal(self.grams, dim1=1, dim2=2).clone()

    def dots(self, vector: Vector) -> Tensor:
        layers = range(len(self.layout))
        return finite_products(torch.stack([self._quick_dots(q, vector) for q in layers]))

    def _quick_dots(self, layer: int, vector: Vector) -> Tensor:
        dots = torch.zeros(self.size, dtype=torch.float64)
        for start, stop in self._pieces(layer):
            dots += self._block(start, stop) @ _read(vector, start, stop)
        return dots if bool(torch.isfinite(dots).all()) else self.layer_dots(layer, vector)

    def layer_dots(self, layer: int, vector: Vector) -> Tensor:
        dots = torch.zeros(self.size, dtype=torch.float64)
        for start, stop in self._pieces(layer):
            part = _read(vector, start, stop).to(torch.float64)
            dots += self._block(start, stop).to(torch.float64) @ part
        return dots

    def lengths(self, vector: Vector) -> Tensor:
        squares = torch.zeros(len(self.layout), dtype=torch.float64)
        for layer, start, stop in self._all_pieces():
            squares[layer] += _square(_read(vector, start, stop))
        return squares.sqrt()

    def layer_length(self, layer: int, vector: Vector) -> float:
        pieces = self._pieces(layer)
        return math.sqrt(sum(float(_square(_read(vector, *piece))) for piece in pieces))

    def combine(
        self, coefficients: Tensor, base: Vector = None, base_scale: Tensor | None = None
    ) -> Vector:
        rows = coefficients.expand(len(self.layout), -1)
        dtypes = [torch.float64 if c else self.matrix.dtype for c in self._cancels(rows).tolist()]

        def pieces() -> Iterator[Tensor]:
            for layer, start, stop in self._all_pieces():
                block = self._block(start, stop).to(dtypes[layer])
                piece = block.T @ rows[layer].to(dtypes[layer])
                if base is not None and base_scale is not None:
                    piece.add_(_read(base, start, stop), alpha=float(base_scale[layer]))
                yield piece.to(self.matrix.dtype)

        return self._write(self.out, pieces())

    def _cancels(self, rows: Tensor) -> Tensor:
        """Where sum_i c_i x_i is too short beside its terms for float32, (Q,) bool."""
        terms = (rows.abs() * self.square_norms.sqrt()).sum(-1)
        squares = (rows.unsqueeze(1) @ self.grams @ rows.unsqueeze(-1)).flatten()
        return terms > _CANCELLING * squares.clamp(min=0).sqrt()

    def rescaled(self, vector: Vector, factors: Tensor) -> Vector:
        pieces = (
            _read(vector, start, stop) * float(factors[layer])
            for layer, start, stop in self._all_pieces()
        )
        return self._write(self.out, pieces)

    def scaled(
        self, vector: Vector, factors: Tensor, other: Vector = None, other_factor: float = 0.0
    ) -> Vector:
        def pieces() -> Iterator[Tensor]:
            for layer, start, stop in self._all_pieces():
                piece = _read(vector, start, stop) * float(factors[layer])
                if other is not None:
                    piece.add_(_read(other, start, stop), alpha=other_factor)
                yield piece

        return self._write(self.out.with_name(f"{self.out.stem}.reference.safetensors"), pieces())

    def select(self, rows: Tensor, dropped: tuple[ClientId, ...] = ()) -> Cohort:
        kept = super().select(rows, dropped)
        return replace(kept, rows=tuple(self.rows[i] for i in rows.tolist()))  # type: ignore[call-arg]

    def _write(self, path: Path, pieces: Iterator[Tensor]) -> DiskVector:
        header = _header(self.rows[0].shapes, self.matrix.dtype)
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            file.write(header)
            for piece in pieces:
                file.write(piece.numpy().tobytes())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        return DiskVector(path, len(header), self.matrix.dtype, self.rows[0].shapes)

    @cached_property
    def _buffer(self) -> Tensor:
        return torch.empty(self.size * self._width, dtype=self.matrix.dtype)

    @property
    def _width(self) -> int:
        # A piece lives once in the buffer, at worst once more in float64, and some rows in flight.
        bytes_per_column = self.size * (self.matrix.dtype.itemsize + 8) + 32
        return max(1, min(self.budget // bytes_per_column, max(self.layout.sizes)))

    def _block(self, start: int, stop: int) -> Tensor:
        """Read one piece of every row into the buffer; valid until the next call."""
        block = self._buffer[: self.size * (stop - start)].view(self.size, stop - start)
        for index, row in enumerate(self.rows):
            block[index] = row.read(start, stop)
        return block

    def _pieces(self, layer: int) -> Iterator[tuple[int, int]]:
        bounds = self.layout.layers[layer]
        for start in range(bounds.start, bounds.stop, self._width):
            yield start, min(start + self._width, bounds.stop)

    def _all_pieces(self) -> Iterator[tuple[int, int, int]]:
        for layer in range(len(self.layout)):
            for start, stop in self._pieces(layer):
                yield layer, start, stop


def _read(vector: Vector, start: int, stop: int) -> Tensor:
    if not isinstance(vector, DiskVector):
        raise TypeError(f"expected a DiskVector, found {type(vector).__name__}")
    return vector.read(start, stop)


def _square(part: Tensor) -> Tensor:
    return part.to(torch.float64).square().sum()


def _open(path: Path) -> DiskVector:
    """Read a file's header; its tensors must be of one float type and follow each other."""
    try:
        with safe_open(path, framework="pt") as file:  # checks the header against the file's size
            names = list(file.keys())
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from error
    with path.open("rb") as raw:
        length = int.from_bytes(raw.read(_HEADER_BYTES), "little")
        header = json.loads(raw.read(length))
    entries = sorted((header[n]["data_offsets"][0], n, header[n]) for n in names)
    kinds = {entry["dtype"] for _, _, entry in entries}
    if len(kinds) != 1 or not kinds <= set(_DTYPES):
        raise InputError(f"{path}: expected tensors of one type, F32 or F64, found {sorted(kinds)}")
    shapes = {name: tuple(entry["shape"]) for _, name, entry in entries}
    return DiskVector(path, _HEADER_BYTES + length, _DTYPES[kinds.pop()], shapes)


def _header(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> bytes:
    code = next(code for code, known in _DTYPES.items() if known == dtype)
    entries, position = {}, 0
    for name, shape in shapes.items():
        end = position + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        entries[name] = {"dtype": code, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # the format aligns its data to eight bytes
    return len(text).to_bytes(_HEADER_BYTES, "little") + text
