"""The tables of docs/which-method.md: stored results with their intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages.markdown import table
from fedcraft.runs.summary import METRICS, gain_place, gain_text, interval_text, marks
from fedcraft.studies.reproduce import from_results
from fedcraft.studies.sweep import SweepResult

__all__ = ["which_blocks"]

_STUDIES = {
    "which femnist": ("auto-femnist", "family-femnist"),
    "which personal": ("family-femnist-personal",),
    "which cifar10": ("auto-cifar10-cnn", "family-cifar10-cnn"),
    "which curves": ("curves-cifar10-cnn",),
}
_SHOWN = [metric for metric in METRICS if metric.key in ("mean", "worst10")]


def which_blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks: each problem's methods by mean, best first, beside FedAvg."""
    return {block: _together(studies, results) for block, studies in _STUDIES.items()}


def _together(studies: Iterable[str], results: Path) -> str:
    """One table of studies of the same problem."""
    found = [from_results(study, results).result for study in studies]
    runs = tuple(run for result in found for run in result.runs)
    rows = SweepResult(found[0].folder, runs).rows("test")
    places = {m.key: dict(zip(map(_name, rows), marks(rows, m), strict=True)) for m in _SHOWN}
    heads = ["method", "seeds", "rounds", *(m.heading.lower() for m in _SHOWN)]
    if any(row["pairs"] for row in rows):
        heads += [f"{m.heading.lower()} − FedAvg" for m in _SHOWN]
    ordered = sorted(rows, key=lambda row: (-row["rounds"], -row["mean"]))
    return table(heads, (list(_cells(row, places))[: len(heads)] for row in ordered))


def _cells(row: Mapping[str, Any], places: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    if row["diverged"]:  # its numbers are not a result
        yield from (f"{row['label']} (diverged)", str(row["seeds"]), *"–" * (1 + 2 * len(_SHOWN)))
        return
    yield from (str(row["label"]), str(row["seeds"]), str(row["rounds"]))
    for metric in _SHOWN:
        text = _marked(metric.text(row[metric.key]), places[metric.key][_name(row)])
        yield f"{text} {interval_text(row, metric)}".strip()
    for metric in _SHOWN:
        yield _marked(gain_text(row, metric), gain_place(row, metric)) if row["pairs"] else "–"


def _marked(text: str, place: int) -> str:
    return {1: f"**{text}**", 2: f"_{text}_"}.get(place, text)


def _name(row: Mapping[str, Any]) -> str:
    return str(row["method"])
