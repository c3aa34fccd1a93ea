"""Index arrays of unequal length, stored in two flat arrays (compressed rows)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcraft.errors import DataError

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Row ``i`` is ``indices[pointers[i]:pointers[i + 1]]``: 8 bytes per row besides its entries.

    >>> rows = Ragged.from_rows([np.array([4, 1]), np.array([7])])
    >>> rows[1], rows.sizes
    (array([7]), array([2, 1]))
    """

    indices: Indices
    pointers: Indices

    def __post_init__(self) -> None:
        steps = np.diff(self.pointers)
        ends = self.pointers[[0, -1]].tolist() if self.pointers.size else []
        if ends != [0, self.indices.size] or (steps < 0).any():
            raise DataError(
                f"pointers must rise from 0 to the number of indices, {self.indices.size}, but "
                f"their ends are {ends}, and they fall {int((steps < 0).sum())} times"
            )

    @classmethod
    def from_rows(cls, rows: Sequence[Indices]) -> Ragged:
        """Join one index array per row."""
        sizes = np.array([len(row) for row in rows], dtype=np.int64)
        flat = np.concatenate(rows) if len(rows) else np.empty(0)
        return cls(flat.astype(np.int64), pointers_of(sizes))

    @classmethod
    def from_owners(cls, owners: Indices, rows: int, order: Indices) -> Ragged:
        """Give entry ``j`` to row ``owners[j]``; inside a row the entries follow ``order``."""
        by_owner = order[np.argsort(owners[order], kind="stable")]
        return cls(by_owner, pointers_of(np.bincount(owners, minlength=rows)))

    def __len__(self) -> int:
        return self.pointers.size - 1

    def __getitem__(self, row: int) -> Indices:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        return self.indices[self.pointers[row] : self.pointers[row + 1]]

    def __iter__(self) -> Iterator[Indices]:
        return (self[row] for row in range(len(self)))

    @property
    def sizes(self) -> Indices:
        """Entries of each row."""
        return np.diff(self.pointers)

    @property
    def rows(self) -> Indices:
        """The row that each entry of ``indices`` belongs to."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def head(self, counts: Indices) -> tuple[Ragged, Ragged]:
        """Cut every row after its first ``counts[i]`` entries: (heads, tails)."""
        position = np.arange(self.indices.size) - np.repeat(self.pointers[:-1], self.sizes)
        in_head = position < np.repeat(counts, self.sizes)
        return (
            Ragged(self.indices[in_head], pointers_of(np.minimum(counts, self.sizes))),
            Ragged(self.indices[~in_head], pointers_of(np.maximum(self.sizes - counts, 0))),
        )


def pointers_of(sizes: Indices) -> Indices:
    """Return where rows of these sizes start and end: 0, s_0, s_0 + s_1, ..."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
