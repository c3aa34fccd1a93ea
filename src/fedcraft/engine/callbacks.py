"""Callbacks: watch a run, log it elsewhere, show its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcraft.config.settings import Settings
from fedcraft.metrics.scores import Scores


@dataclass(frozen=True)
class RunInfo:
    """What is known about a run before its first round."""

    settings: Settings
    clients: int
    dimension: int
    executor: str
    workers: int
    first_round: int
    memory_mb: float
    directory: Path | None


class Callback:
    """Override the methods you need. Records are those of metrics.jsonl; do not change them.

    A callback runs in the server's process between rounds; if it raises, the run fails.
    """

    def on_start(self, info: RunInfo) -> None:
        """Called once, before the first round of this process."""

    def on_round(self, record: Mapping[str, Any]) -> None:
        """Called after every round, including its evaluation.

        A run that ends on NaN calls it once more for its last round, if that was not evaluated.
        """

    def on_evaluate(self, round_number: int, scores: Mapping[str, Scores]) -> None:
        """Called after an evaluation of all clients, with every client's numbers by split."""

    def on_end(self, state: str, reason: str) -> None:
        """Called when the run ends: finished, stopped, interrupted or failed."""
