"""The bar of a sweep; that of a single run is the engine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedcraft.runs.reader import Result
from fedcraft.studies.sweep import Observer

__all__ = ["SweepBar"]


def _bar(console: Console, unit: str) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class SweepBar(Observer):
    """A bar over all rounds of all runs, with the runs that ended counted beside it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = _bar(console, "rounds")
        self._task: TaskID | None = None
        self._rounds: dict[Path, int] = {}
        self._reached: dict[Path, int] = {}
        self._ended = self._failed = 0

    def planned(self, results: Sequence[Result], waiting: int) -> None:
        done = len(results) - waiting
        self._reached, self._ended, self._failed = {}, 0, 0  # a study may plan more than once
        if done:
            self._console.print(f"{done} of {len(results)} runs are done already and not repeated")
        self._rounds = {r.directory: r.config.rounds for r in results if not r.done}
        if waiting:
            self._bar.start()
            total = sum(self._rounds.values())
            self._task = self._bar.add_task(f"{waiting} runs", total=total, note="")

    def progress(self, directory: Path, record: Mapping[str, Any]) -> None:
        self._reached[directory] = record["round"]
        self._show()

    def ended(self, directory: Path, error: str) -> None:
        self._reached[directory] = self._rounds[directory]
        self._ended += 1
        self._failed += bool(error)
        if not self._console.is_terminal:
            how = "failed" if error else "done"
            self._console.print(f"{self._ended}/{len(self._rounds)} {directory.name} {how}")
        self._show()

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    def _show(self) -> None:
        if self._task is not None:
            failed = f", {self._failed} failed" if self._failed else ""
            note = f"{self._ended}/{len(self._rounds)} runs{failed}"
            self._bar.update(self._task, completed=sum(self._reached.values()), note=note)
