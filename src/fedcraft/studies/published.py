"""The paper's numbers, from presets/published.toml, for comparison with ours."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedcraft.studies.presets import read_data


class Published(NamedTuple):
    """One row of a table of the paper."""

    mean: float
    best10: float
    worst10: float
    std: float


_DATA = read_data("published.toml")

TABLES: dict[str, dict[str, Published]] = {
    table: {method: Published(*numbers) for method, numbers in rows.items()}
    for table, rows in _DATA["tables"].items()
}
AUTHORS_RUNS: dict[str, dict[int, float]] = {
    table: {int(number): mean for number, mean in rounds.items()}
    for table, rounds in _DATA["authors_runs"].items()
}
"""CRAFT's mean accuracy by round in the run that the authors released, at the rates 0.005, 0.1."""


def published_rows(table: str) -> list[dict[str, Any]]:
    """Return one table as rows with the key ``method``: for comparison in the report."""
    return [{"method": name, **row._asdict()} for name, row in TABLES[table].items()]
