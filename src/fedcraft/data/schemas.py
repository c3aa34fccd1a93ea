"""The schemas of the named image sets, read from ``images.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Schema:
    """One image set: its Parquet files, their columns, and its mean and standard deviation."""

    name: str
    about: str
    repository: str
    folder: str
    splits: tuple[str, ...]
    image: str
    label: str
    classes: int
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    owner: str | None = None
    augmentation: str = "none"
    class_names: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [self.image, self.label, *([self.owner] if self.owner else [])]


def _read(name: str, class_names: str = "", **values: Any) -> Schema:
    """Return a schema; the names of its classes are words in one text."""
    frozen: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in values.items()
    }
    return Schema(name, class_names=tuple(class_names.split()), **frozen)


_TABLE = tomllib.loads(Path(__file__).with_name("images.toml").read_text(encoding="utf-8"))
SCHEMAS = {name: _read(name, **row) for name, row in _TABLE.items()}
