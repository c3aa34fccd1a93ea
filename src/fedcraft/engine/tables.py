"""Append-only tables: rows go to the end, and a resumed run cuts off what it will write again."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcraft.errors import CheckpointError

__all__ = ["CsvTable", "JsonLines", "Table", "plain"]


class Table:
    """A text file that only grows, until :meth:`cut` takes it back to an earlier size."""

    def __init__(self, path: Path, header: str = "") -> None:
        self.path = path
        self._header = header
        self._file = path.open("ab")
        if header and not self.size:
            self.write(header)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return os.fstat(self._file.fileno()).st_size

    def write(self, text: str) -> None:
        """Append complete lines; what was written is in the file when this returns."""
        self._file.write(text.encode())
        self._file.flush()

    def sync(self) -> int:
        """Force everything to the disk and return the size: what a checkpoint remembers."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self.size

    def cut(self, size: int | None) -> None:
        """Drop everything after ``size`` bytes; None for everything but the header."""
        wanted = len(self._header.encode()) if size is None else size
        if size is not None and size > self.size:
            raise CheckpointError(
                f"{self.path}: the checkpoint counts {size} bytes, found {self.size}; rows are lost"
            )
        self._file.truncate(min(wanted, self.size))
        if self._header and not self.size:
            self.write(self._header)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CsvTable(Table):
    """Comma-separated rows under a fixed header."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        super().__init__(path, ",".join(columns) + "\n")

    def rows(self, rows: Iterable[Iterable[object]]) -> None:
        """Append rows; numbers are written so that they read back as the same bits."""
        self.write("".join(",".join(map(_cell, row)) + "\n" for row in rows))


class JsonLines(Table):
    """One JSON object per line."""

    def row(self, row: Mapping[str, Any]) -> None:
        """Append one object; NaN and Inf, which JSON does not know, become null."""
        self.write(json.dumps(plain(row), separators=(",", ":"), allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Return ``value`` with everything JSON cannot say replaced by what it can."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _cell(value: object) -> str:
    text = str(value)
    if "," in text or '"' in text or "\n" in text:
        return '"' + text.replace('"', '""') + '"'
    return text
