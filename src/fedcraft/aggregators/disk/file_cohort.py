"""A cohort whose updates stay in files: read in pieces, never as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self
from uuid import uuid4

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort, Terms, Vector
from fedcraft.aggregators.disk.disk_vector import DiskVector, write_vector
from fedcraft.linalg import finite_products, without_vanishing
from fedcraft.updates import ClientId


@dataclass(frozen=True, kw_only=True)
class FileCohort(Cohort):
    """A cohort whose rows are files. Vectors are files too."""

    files: tuple[DiskVector, ...]
    folder: Path  # for temporary vectors
    budget: int  # bytes

    @property
    def dtype(self) -> torch.dtype:
        return self.files[0].dtype

    @cached_property
    def grams(self) -> Tensor:
        return without_vanishing(finite_products(self._grams), self.dtype)

    @cached_property
    def _grams(self) -> Tensor:
        """The Gram matrices before any check: a row with NaN or Inf shows on their diagonal."""
        return torch.stack([self._gram(layer) for layer in range(len(self.layout))])

    def _gram(self, layer: int) -> Tensor:
        gram = self._summed(layer, lambda block, *_: block @ block.T, self.dtype)
        if self.dtype == torch.float64 or bool(torch.isfinite(gram).all()):
            return gram
        return self.precise_gram(layer)  # squares of huge rows overflow

    def precise_gram(self, layer: int) -> Tensor:
        return self._summed(layer, lambda block, *_: block @ block.T, torch.float64)

    def dots(self, vector: Vector) -> Tensor:
        layers = range(len(self.layout))
        return finite_products(torch.stack([self._dots(layer, vector) for layer in layers]))

    def _dots(self, layer: int, vector: Vector) -> Tensor:
        dots = self._products(layer, vector, self.dtype)
        return dots if bool(torch.isfinite(dots).all()) else self.precise_dots(layer, vector)

    def precise_dots(self, layer: int, vector: Vector) -> Tensor:
        return self._products(layer, vector, torch.float64)

    def _products(self, layer: int, vector: Vector, dtype: torch.dtype) -> Tensor:
        def product(block: Tensor, start: int, stop: int) -> Tensor:
            return block @ self._read(vector, start, stop).to(dtype)

        return self._summed(layer, product, dtype)

    def _summed(
        self, layer: int, product: Callable[[Tensor, int, int], Tensor], dtype: torch.dtype
    ) -> Tensor:
        """Add up, in float64, products of a layer's pieces multiplied in ``dtype``."""
        parts = (
            product(self._block(start, stop).to(dtype), start, stop).to(torch.float64)
            for start, stop in self._pieces(layer)
        )
        total = next(parts)
        for part in parts:
            total += part
        return total

    def lengths(self, vector: Vector) -> Tensor:
        squares = torch.zeros(len(self.layout), dtype=torch.float64)
        for layer, start, stop in self._all_pieces():
            squares[layer] += self._read(vector, start, stop).to(torch.float64).square().sum()
        return squares.sqrt()

    def precise_length(self, layer: int, vector: Vector) -> float:
        return float(self.lengths(vector)[layer])

    def add_up(self, terms: Terms) -> DiskVector:
        rows = terms.factor * terms.coefficients.expand(len(self.layout), -1)

        def pieces() -> Iterator[Tensor]:
            for layer, start, stop in self._all_pieces():
                dtype = torch.float64 if layer in terms.precise else self.dtype
                piece = self._block(start, stop).to(dtype).T @ rows[layer].to(dtype)
                if terms.base is not None:
                    share = terms.factor * float(terms.base_scale[layer])
                    piece.add_(self._read(terms.base, start, stop), alpha=share)
                yield piece.to(self.dtype)

        return self._write(pieces())

    def scaled(
        self,
        vector: Vector,
        factors: Tensor,
        other: Vector | None = None,
        other_factor: float = 0.0,
    ) -> DiskVector:
        def pieces() -> Iterator[Tensor]:
            for layer, start, stop in self._all_pieces():
                piece = self._read(vector, start, stop) * float(factors[layer])
                if other is not None:
                    piece.add_(self._read(other, start, stop), alpha=other_factor)
                yield piece

        return self._write(pieces())

    def finite_rows(self) -> Tensor:
        """Which updates hold neither NaN nor Inf, (m,) bool."""
        squares = torch.diagonal(self._grams, dim1=1, dim2=2)
        finite = torch.isfinite(squares).all(dim=0)
        for row in torch.nonzero(~finite).flatten().tolist():  # or its square overflows
            pieces = (self.files[row].read(start, stop) for _, start, stop in self._all_pieces())
            finite[row] = all(bool(torch.isfinite(piece).all()) for piece in pieces)
        return finite

    def select(self, rows: Tensor, dropped: tuple[ClientId, ...] = ()) -> Self:
        kept = super().select(rows, dropped)
        return replace(kept, files=tuple(self.files[i] for i in rows.tolist()))

    def _write(self, pieces: Iterator[Tensor]) -> DiskVector:
        path = self.folder / f"{uuid4().hex}.safetensors"
        return write_vector(path, self.files[0].shapes, self.dtype, pieces)

    def _read(self, vector: Vector, start: int, stop: int) -> Tensor:
        """A piece of a vector on disk, or of one that an earlier round left in memory."""
        if isinstance(vector, DiskVector):
            return vector.read(start, stop).to(self.dtype)
        return vector[start:stop].to("cpu", self.dtype)

    @cached_property
    def _buffer(self) -> Tensor:
        return torch.empty(self.size * self._width, dtype=self.dtype)

    @property
    def _width(self) -> int:
        # A piece is in the buffer, perhaps once more in float64, while a few rows are being read.
        bytes_per_column = self.size * (self.dtype.itemsize + 8) + 32
        return max(1, min(self.budget // bytes_per_column, max(self.layout.sizes)))

    def _block(self, start: int, stop: int) -> Tensor:
        """Read one piece of every row into the buffer; valid until the next call."""
        block = self._buffer[: self.size * (stop - start)].view(self.size, stop - start)
        for index, row in enumerate(self.files):
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
