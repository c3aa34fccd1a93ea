"""A cohort whose updates stay in files: read in pieces, never as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from uuid import uuid4

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort, Vector
from fedcraft.linalg import finite_products, without_vanishing
from fedcraft.outofcore.vector import DiskVector, write_vector
from fedcraft.updates import ClientId

__all__ = ["FileCohort"]

_CANCELLING = 100  # times shorter than its terms: two of float32's seven digits


@dataclass(frozen=True)
class FileCohort(Cohort):
    """A cohort whose rows are files; ``matrix`` only stands for their shape and dtype."""

    rows: tuple[DiskVector, ...] = ()
    folder: Path = Path()  # for what is made on the way
    budget: int = 0  # bytes

    @cached_property
    def grams(self) -> Tensor:
        return without_vanishing(finite_products(self._grams), self.matrix.dtype)

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
            dots += self._block(start, stop) @ self._read(vector, start, stop)
        return dots if bool(torch.isfinite(dots).all()) else self.layer_dots(layer, vector)

    def layer_dots(self, layer: int, vector: Vector) -> Tensor:
        dots = torch.zeros(self.size, dtype=torch.float64)
        for start, stop in self._pieces(layer):
            part = self._read(vector, start, stop).to(torch.float64)
            dots += self._block(start, stop).to(torch.float64) @ part
        return dots

    def lengths(self, vector: Vector) -> Tensor:
        squares = torch.zeros(len(self.layout), dtype=torch.float64)
        for layer, start, stop in self._all_pieces():
            squares[layer] += _square(self._read(vector, start, stop))
        return squares.sqrt()

    def layer_length(self, layer: int, vector: Vector) -> float:
        pieces = self._pieces(layer)
        return math.sqrt(sum(float(_square(self._read(vector, *piece))) for piece in pieces))

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
                    piece.add_(self._read(base, start, stop), alpha=float(base_scale[layer]))
                yield piece.to(self.matrix.dtype)

        return self._write(pieces())

    def _cancels(self, rows: Tensor) -> Tensor:
        """Where sum_i c_i x_i is too short beside its terms for float32, (Q,) bool."""
        terms = (rows.abs() * self.square_norms.sqrt()).sum(-1)
        squares = (rows.unsqueeze(1) @ self.grams @ rows.unsqueeze(-1)).flatten()
        return terms > _CANCELLING * squares.clamp(min=0).sqrt()

    def rescaled(self, vector: Vector, factors: Tensor) -> Vector:
        pieces = (
            self._read(vector, start, stop) * float(factors[layer])
            for layer, start, stop in self._all_pieces()
        )
        return self._write(pieces)

    def scaled(
        self, vector: Vector, factors: Tensor, other: Vector = None, other_factor: float = 0.0
    ) -> Vector:
        def pieces() -> Iterator[Tensor]:
            for layer, start, stop in self._all_pieces():
                piece = self._read(vector, start, stop) * float(factors[layer])
                if other is not None:
                    piece.add_(self._read(other, start, stop), alpha=other_factor)
                yield piece

        return self._write(pieces())

    def select(self, rows: Tensor, dropped: tuple[ClientId, ...] = ()) -> Cohort:
        kept = super().select(rows, dropped)
        return replace(kept, rows=tuple(self.rows[i] for i in rows.tolist()))  # type: ignore[call-arg]

    def _write(self, pieces: Iterator[Tensor]) -> DiskVector:
        path = self.folder / f"{uuid4().hex}.safetensors"
        return write_vector(path, self.rows[0].shapes, self.matrix.dtype, pieces)

    def _read(self, vector: Vector, start: int, stop: int) -> Tensor:
        """A piece of a vector on disk, or of one that an earlier round left in memory."""
        on_disk = isinstance(vector, DiskVector)
        piece: Tensor = vector.read(start, stop) if on_disk else vector[start:stop]
        return piece.to("cpu", self.matrix.dtype)

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


def _square(part: Tensor) -> Tensor:
    return part.to(torch.float64).square().sum()
