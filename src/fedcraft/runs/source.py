"""The source of a run's content: its directory, with every file checked against the seal."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from fedcraft.errors import DataError
from fedcraft.runs.directory import CONFIG_FILE, MODEL_FILE, TABLES
from fedcraft.runs.seal import STATUS_FILE, Seal


class RunSource(Protocol):
    """The content that a :class:`~fedcraft.Run` reads; ``None`` or empty before it is written."""

    @property
    def directory(self) -> Path: ...

    def values(self) -> dict[str, Any] | None:
        """Return the keys of the configuration."""

    def status(self) -> dict[str, Any]:
        """Return the status of the run."""

    def environment(self) -> dict[str, Any]:
        """Return the environment of the run."""

    def records(self) -> list[dict[str, Any]]:
        """Return the record of each round."""

    def table(self, name: str) -> bytes | None:
        """Return a CSV table (``clients``, ``conflicts``, ``cosines``, ``labels``, names).

        It consists of complete lines.
        """

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the final model."""

    def modified(self) -> float | None:
        """Return when the newest numbers were written, in seconds since the epoch."""


@dataclass(frozen=True)
class DirectorySource:
    """A run directory; those of fedcraft 0.1.0 have no seal and are read up to a torn last line."""

    directory: Path

    @cached_property
    def _seal(self) -> Seal:
        return Seal.load(self.directory)

    def values(self) -> dict[str, Any] | None:
        content = self._read(CONFIG_FILE)
        if content is None:
            return None
        try:
            return tomllib.loads(content.decode())
        except ValueError as error:
            raise DataError(
                f"{self.directory / CONFIG_FILE} should be TOML, but: {error}. Repair the file or "
                "leave out this run."
            ) from error

    def status(self) -> dict[str, Any]:
        return self._json(STATUS_FILE)

    def environment(self) -> dict[str, Any]:
        return self._json("environment.json")

    def records(self) -> list[dict[str, Any]]:
        name = TABLES["metrics"]
        lines = _whole_lines(self._read(name) or b"").split(b"\n")[:-1]
        records = [self._object(line, f"{name}, line {n}") for n, line in enumerate(lines, 1)]
        for number, record in enumerate(records, 1):
            if not isinstance(record.get("round"), int):
                raise self._damaged(f"{name}, line {number}", "it has no round")
        return records

    def table(self, name: str) -> bytes | None:
        content = self._read(f"{name}.csv")
        return None if content is None else _whole_lines(content)

    def tensors(self) -> Mapping[str, Tensor]:
        from safetensors.torch import load

        content = self._read(MODEL_FILE)
        if content is None:
            raise DataError(
                f"{self.directory / MODEL_FILE} does not exist; a run writes it when it ends"
            )
        return load(content)

    def modified(self) -> float | None:
        path = self.directory / TABLES["metrics"]
        return path.stat().st_mtime if path.is_file() else None

    def _read(self, name: str) -> bytes | None:
        try:
            return self._seal.read(name)
        except FileNotFoundError:
            return None

    def _json(self, name: str) -> dict[str, Any]:
        content = self._read(name)
        return {} if content is None else self._object(content, name)

    def _object(self, content: bytes, place: str) -> dict[str, Any]:
        try:
            found = json.loads(content)
        except ValueError as error:
            raise self._damaged(place, str(error)) from error
        if not isinstance(found, dict):
            raise self._damaged(place, "it is not an object")
        return found

    def _damaged(self, place: str, why: str) -> DataError:
        return DataError(
            f"{self.directory / place}: expected JSON that a run wrote, but: {why}. Restore the "
            "file from a copy, or leave out this run"
        )


def _whole_lines(content: bytes) -> bytes:
    """Leave out a torn last line: a run without a seal may be writing it."""
    return content[: content.rfind(b"\n") + 1]
