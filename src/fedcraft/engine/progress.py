"""The progress of a run: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedcraft.console import notes
from fedcraft.engine.callbacks import Callback, RunInfo

Style = Literal["auto", "bar", "lines", "quiet"]
_LINE_SECONDS = 10.0


def progress(style: Style = "auto", console: Console | None = None) -> Callback:
    """Return a callback that shows a run: a bar where there is a terminal, else lines."""
    target = notes() if console is None else console
    if style == "quiet":
        return Callback()
    if style == "bar" or (style == "auto" and target.is_terminal):
        return ProgressBar(target)
    return ProgressLines(target)


class ProgressBar(Callback):
    """One line that moves: rounds, time left, mean and worst tenth of accuracies, conflicts."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=console,
        )
        self._numbers = _Numbers()

    def on_start(self, info: RunInfo) -> None:
        self._bar.console.print(_headline(info), markup=False, highlight=False)
        self._bar.start()
        self._task = self._bar.add_task(
            "rounds", total=info.settings.rounds, completed=info.first_round, numbers=""
        )

    def on_round(self, record: Mapping[str, Any]) -> None:
        self._numbers.take(record)
        self._bar.update(self._task, completed=record["round"], numbers=str(self._numbers))

    def on_end(self, state: str, reason: str) -> None:
        self._bar.stop()
        if reason:
            self._bar.console.print(f"{state}: {reason}", markup=False, highlight=False)


class ProgressLines(Callback):
    """A line at the start, at every evaluation, at least every few seconds, and at the end."""

    def __init__(self, console: Console) -> None:
        self._console, self._numbers = console, _Numbers()
        self._rounds, self._first = 0, 0
        self._started = self._last = time.monotonic()

    def on_start(self, info: RunInfo) -> None:
        self._rounds, self._first = info.settings.rounds, info.first_round
        self._started = self._last = time.monotonic()
        self._print(_headline(info))

    def on_round(self, record: Mapping[str, Any]) -> None:
        self._numbers.take(record)
        now = time.monotonic()
        if "evaluation" not in record and now - self._last < _LINE_SECONDS:
            return
        self._last = now
        done = max(record["round"] - self._first, 1)
        left = (now - self._started) / done * (self._rounds - record["round"])
        self._print(f"round {record['round']}/{self._rounds}  {self._numbers}  {left:.0f} s left")

    def on_end(self, state: str, reason: str) -> None:
        self._print(f"{state}{': ' if reason else ''}{reason}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Numbers:
    """The latest numbers of a run, as a short text."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def take(self, record: Mapping[str, Any]) -> None:
        evaluation = record.get("evaluation") or {}
        for name, label in (("mean", "mean"), ("worst10", "worst 10 %")):
            if evaluation.get(name) is not None:
                self._shown[label] = f"{evaluation[name]:.3f}"
        conflicts = record.get("conflicts")
        if conflicts:
            self._shown["conflicts"] = f"{conflicts['average']} → {conflicts['after']}"

    def __str__(self) -> str:
        return "  ".join(f"{label} {text}" for label, text in self._shown.items())


def _headline(info: RunInfo) -> str:
    settings = info.settings
    workers = f" with {info.workers} workers of one thread" if info.workers > 1 else ""
    return (
        f"{info.clients} clients, {settings.clients_per_round} a round, {info.dimension:,} "
        f"parameters; {info.executor}{workers}; about {info.memory_mb:.0f} MB besides the program"
    )
