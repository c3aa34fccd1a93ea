"""Reading files that another process may still be writing.

The engine only ever appends whole lines, so everything up to the last line break is sound and the
rest is ignored.
"""

from __future__ import annotations

import csv
import io
import json
import tomllib
from pathlib import Path
from typing import Any

from fedcraft.errors import DataError
from fedcraft.report.extras import needs

with needs("pandas"):
    import pandas as pd

__all__ = [
    "read_json",
    "read_json_lines",
    "read_last_rounds",
    "read_names",
    "read_table",
    "read_toml",
]

_FIRST_TAIL_BYTES = 1 << 18
_TAIL_ROUNDS = 2  # the last round may be half written; the one before it is whole


def read_toml(path: Path) -> dict[str, Any]:
    """The keys of a TOML file; a broken one names itself."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as broken:
        raise DataError(
            f"{path} should be TOML, but: {broken}. Repair the file or leave out this run."
        ) from broken


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ``{}`` when the file is absent, torn or no object."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, without a torn last line."""
    lines = _whole_lines(_read(path)).decode("utf-8", "replace").split("\n")
    return [record for line in lines if (record := _parse(line)) is not None]


def read_table(path: Path) -> pd.DataFrame:
    """A CSV file without a torn last line; an empty frame when the file is absent."""
    return _parse_table(_whole_lines(_read(path)))


def read_names(path: Path) -> dict[int, str]:
    """The name of each number in owners.csv or classes.csv; empty when the file is absent."""
    text = _whole_lines(_read(path)).decode("utf-8", "replace")
    rows = list(csv.reader(io.StringIO(text, newline="")))[1:]
    return {int(row[0]): row[1] for row in rows if len(row) == 2 and row[0].isdigit()}


def read_last_rounds(path: Path) -> pd.DataFrame:
    """The last few rounds of a table sorted by ``round``, read from the end of the file.

    Per-client tables of long runs reach hundreds of megabytes, and a report only shows their end.
    """
    size = path.stat().st_size if path.is_file() else 0
    wanted = _FIRST_TAIL_BYTES
    while True:
        table = _read_tail(path, wanted) if size > wanted else read_table(path)
        enough = "round" in table and table["round"].nunique() > _TAIL_ROUNDS
        if size <= wanted or enough:
            return table
        wanted *= 4


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _parse_table(content: bytes) -> pd.DataFrame:
    if not content.strip():
        return pd.DataFrame()
    return pd.read_csv(io.BytesIO(content), on_bad_lines="skip", low_memory=False)


def _read_tail(path: Path, size: int) -> pd.DataFrame:
    with path.open("rb") as stream:
        header = stream.readline()
        stream.seek(-size, io.SEEK_END)
        tail = stream.read()
    begin = tail.find(b"\n") + 1
    table = _parse_table(header + _whole_lines(tail[begin:]))
    # The first round of the tail is cut somewhere in its middle.
    return table[table["round"] != table["round"].iloc[0]] if len(table) else table
