"""Append-only tables; a resumed run cuts off the rows that it will write again."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedcraft.atomic import AppendOnly
from fedcraft.errors import DamageError
from fedcraft.runs.seal import Digest

_CHUNK = 1 << 22


class Table:
    """A text file that keeps its first ``kept`` bytes and grows from there, with its digest."""

    def __init__(self, path: Path, kept: int = 0) -> None:
        self.path = path
        self._hash = _hash(path, kept)
        self._kept = kept
        self._file: AppendOnly | None = None

    @property
    def digest(self) -> Digest:
        """The size and SHA-256 of what has been written."""
        size = self._kept if self._file is None else self._file.size
        return Digest(size, self._hash.hexdigest())

    def open(self, header: str = "") -> None:
        """Cut the file to what is kept and open it; an empty one gets its header."""
        self._file = AppendOnly(self.path, self._kept)
        if not self._kept:
            self.write(header)

    def write(self, text: str) -> None:
        """Append complete lines."""
        if self._file is None:
            raise ValueError(f"{self.path} is not open")
        content = text.encode()
        self._file.write(content)
        self._hash.update(content)

    def rows(self, rows: Iterable[Iterable[object]]) -> None:
        """Append comma-separated rows; numbers read back as the same bits."""
        self.write(csv_text(rows))

    def json(self, row: Mapping[str, Any]) -> None:
        """Append one JSON object; NaN and Inf, which JSON does not have, become null."""
        self.write(json.dumps(plain(row), separators=(",", ":"), allow_nan=False) + "\n")

    def sync(self) -> None:
        """Force everything to the disk."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def check_start(path: Path, expected: Digest | int) -> None:
    """Raise ``DamageError`` unless a table starts so; 0.1.0 kept only the number of bytes."""
    size = expected if isinstance(expected, int) else expected.size
    found = path.stat().st_size if path.is_file() else 0
    if found < size:
        raise DamageError(
            f"{path}: the checkpoint counts {size} bytes, found {found}; rows are lost"
        )
    if isinstance(expected, Digest) and _hash(path, size).hexdigest() != expected.sha256:
        raise DamageError(f"{path}: its first {size} bytes, up to the checkpoint, were changed")


def plain(value: Any) -> Any:
    """Return ``value`` with NaN and Inf replaced by None, and arrays by lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _hash(path: Path, size: int) -> hashlib._Hash:
    digest = hashlib.sha256()
    if size:
        with path.open("rb") as file:
            while size > 0 and (chunk := file.read(min(size, _CHUNK))):
                digest.update(chunk)
                size -= len(chunk)
    return digest
