"""The progress bar of a sweep."""

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

from fedcraft.runs import Run
from fedcraft.studies.sweep import Observer


class SweepBar(Observer):
    """A bar over all rounds of all runs, with the number of ended runs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._rounds: dict[Path, int] = {}
        self._reached: dict[Path, int] = {}
        self._ended = self._failed = 0

    def planned(self, results: Sequence[Run], waiting: int) -> None:
        done = len(results) - waiting
        self._reached, self._ended, self._failed = {}, 0, 0  # a study may plan more than once
        if done:
            self._console.print(f"{done} of {len(results)} runs are already done and not repeated")
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
        """Remove the bar."""
        self._bar.stop()

    def _show(self) -> None:
        if self._task is not None:
            failed = f", {self._failed} failed" if self._failed else ""
            note = f"{self._ended}/{len(self._rounds)} runs{failed}"
            self._bar.update(self._task, completed=sum(self._reached.values()), note=note)
