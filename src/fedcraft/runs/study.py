"""Stored studies: many runs in a few CSV tables, small enough for git and for the wheel.

A study is a folder with

* ``runs.csv``: a row per run, its configuration, status and environment as dotted columns. A run
  that is also part of another study is stored there; its row names that study (``stored_in``).
* ``curves.csv``: the records of the evaluated rounds, nested numbers as dotted columns.
* ``clients.csv`` and ``conflicts.csv``: as in a run directory, with the run as first column.

Studies share splits of the data into clients. What is known about those is in the folder ``splits``
beside the studies: ``labels.csv``, ``owners.csv`` and ``classes.csv`` as in a run directory, with
the beginning of the split's hash as first column.

A cell of ``runs.csv`` or ``curves.csv`` is text, or a JSON value where it can be read as one.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from fedcraft.errors import DataError
from fedcraft.runs.problems import flatten
from fedcraft.runs.run import Run
from fedcraft.runs.tables import csv_text

_RUNS, _CURVES = "runs.csv", "curves.csv"
_BY_RUN, _BY_SPLIT = ("clients", "conflicts"), ("labels", "owners", "classes")
_SPLITS = "splits"
_START = "run,stored_in,"
_SPLIT_DIGITS = 12

Table = tuple[list[str], dict[str, list[list[str]]]]
"""The column names without the first one, and the rows by their first cell."""


def is_study(folder: Path) -> bool:
    """Tell whether a folder holds a stored study."""
    try:
        with (folder / _RUNS).open(encoding="utf-8") as lines:
            return lines.readline().startswith(_START)
    except (OSError, UnicodeDecodeError):
        return False


@dataclass(frozen=True)
class Study:
    """A stored study; each of its files is read once, when it is first needed."""

    folder: Path
    _tables: dict[str, Table] = field(default_factory=dict, compare=False, repr=False)

    def runs(self) -> list[Run]:
        """Return the runs of the study in the order in which they are stored."""
        others: dict[str, Study] = {}
        found = []
        for name, about in self.about.items():
            place = about.get("stored_in")
            if place is None:
                study = self
            else:
                study = others.setdefault(place, Study(self.folder.parent / place))
                if name not in study.about:
                    raise DataError(
                        f"{self.folder / _RUNS}: {name} should be stored in {study.folder}, but is "
                        "not. Restore that folder from a copy"
                    )
            found.append(Run(StudySource(study, name)))
        return found

    @cached_property
    def about(self) -> dict[str, dict[str, Any]]:
        """``config``, ``status`` and ``environment`` of each run, or where it is ``stored_in``."""
        names, rows = self.table(_RUNS)
        return {name: _nested(names, cells[-1]) for name, cells in rows.items()}

    def table(self, file: str) -> Table:
        """Return a table of the study; a study without such numbers has none."""
        if file not in self._tables:
            self._tables[file] = _read(self.folder / file)
        return self._tables[file]


@dataclass(frozen=True)
class StudySource:
    """One run of a stored study."""

    study: Study
    name: str

    @property
    def directory(self) -> Path:
        return self.study.folder / self.name

    def values(self) -> dict[str, Any] | None:
        return self._about("config")

    def status(self) -> dict[str, Any]:
        return self._about("status")

    def environment(self) -> dict[str, Any]:
        return self._about("environment")

    def _about(self, part: str) -> dict[str, Any]:
        return dict(self.study.about[self.name].get(part, {}))

    def records(self) -> list[dict[str, Any]]:
        names, rows = self.study.table(_CURVES)
        return [_nested(names, cells) for cells in rows.get(self.name, [])]

    def table(self, name: str) -> bytes | None:
        if name in _BY_RUN:
            file, key = f"{name}.csv", self.name
        else:
            file, key = f"../{_SPLITS}/{name}.csv", _split(self.status().get("split_hash"))
        names, rows = self.study.table(file)
        return csv_text([names, *rows[key]]).encode() if key in rows else None

    def tensors(self) -> Mapping[str, Tensor]:
        raise DataError(
            f"{self.directory}: a stored study has no models. Do the run again: "
            "fedcraft.run(run.config)"
        )

    def modified(self) -> float | None:
        return None  # the time of a copy is not the time of the numbers


def write_study(folder: Path, runs: Sequence[Run]) -> Path:
    """Write ``runs`` as a study; runs that another study stores are written as references."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {run.directory.name: run for run in runs if _place(run, folder) is None}
    about = [_about(run, folder) for run in runs]
    _write(folder / _RUNS, ["run", "stored_in"], about)
    records = ({"run": name, **record} for name, run in own.items() for record in run.records)
    _write(folder / _CURVES, ["run", "round"], list(records))
    for name in _BY_RUN:
        _write_joined(folder / f"{name}.csv", "run", own.items())
    splits = folder.parent / _SPLITS
    for name in _BY_SPLIT:
        _write_joined(splits / f"{name}.csv", "split", ((_split(r.split_hash), r) for r in runs))
    return folder


def _place(run: Run, folder: Path) -> str | None:
    """Return the name of the other study that stores a run, if there is one."""
    source = run.source
    known = isinstance(source, StudySource) and source.study.folder.resolve() != folder.resolve()
    return run.directory.parent.name if known else None


def _about(run: Run, folder: Path) -> dict[str, Any]:
    place = _place(run, folder)
    if place is not None:
        return {"run": run.directory.name, "stored_in": place}
    return {
        "run": run.directory.name,
        "config": run.source.values(),
        "status": run.status,
        "environment": run.environment,
    }


def _write_joined(path: Path, first: str, runs: Iterable[tuple[str, Run]]) -> None:
    """Write a table of several runs by their keys; if runs share a key, the first one counts.

    Existing splits are kept.
    """
    names, rows = _read(path) if first == "split" else ([], {})
    for key, run in runs:
        content = run.source.table(path.stem) if key not in rows else None
        if content is not None:
            names, *rows[key] = csv.reader(io.StringIO(content.decode(), newline=""))
    path.unlink(missing_ok=True)
    if rows:
        path.parent.mkdir(exist_ok=True)
        lines = ([key, *row] for key, found in rows.items() for row in found)
        path.write_text(csv_text([[first, *names], *lines]), encoding="utf-8")


def _split(split_hash: object) -> str:
    return str(split_hash)[:_SPLIT_DIGITS]


def _write(path: Path, first: list[str], rows: Iterable[Mapping[str, Any]]) -> None:
    flat = [flatten(row) for row in rows]
    names = list(dict.fromkeys([*first, *(key for row in flat for key in row)]))
    lines = [[_cell(row.get(name)) for name in names] for row in flat]
    path.write_text(csv_text([names, *lines]), encoding="utf-8")


def _read(path: Path) -> Table:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return [], {}
    except UnicodeDecodeError as error:
        raise DataError(f"{path} should be a CSV table in UTF-8, but: {error}") from error
    lines = csv.reader(io.StringIO(text, newline=""))
    _, *names = next(lines, [""])
    found: dict[str, list[list[str]]] = {}
    for key, *cells in lines:
        if len(cells) != len(names):
            raise DataError(
                f"{path}, line {lines.line_num}: expected {len(names) + 1} cells, found "
                f"{len(cells) + 1}. Restore the file from a copy"
            )
        found.setdefault(key, []).append(cells)
    return names, found


def _cell(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, str) and _value(value) == value:
        return value
    return json.dumps(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _nested(names: Sequence[str], cells: Sequence[str]) -> dict[str, Any]:
    """Return the values of the cells that are not empty, dotted names as tables."""
    found: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        if cell:
            *tables, last = name.split(".")
            inner = found
            for table in tables:
                inner = inner.setdefault(table, {})
            inner[last] = _value(cell)
    return found
