"""Which of several runs speaks for its method.

The paper reports the learning rates with the best mean *test* accuracy. That is not honest: the
test data had a say. Where clients keep a validation part, the rates are also chosen by it, and a
table says which of the two it shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, TypeVar

from fedcraft.experiments.config import MACHINE_KEYS
from fedcraft.experiments.result import Result

__all__ = [
    "COLUMNS",
    "Judge",
    "Setting",
    "best",
    "best_on_shared_seeds",
    "can_validate",
    "row",
    "settings_of",
]

Judge = Literal["test", "validation"]
_SCORE = {"test": "mean", "validation": "validation_mean"}

COLUMNS = ("mean", "best10", "worst10", "std")
"""The columns of the paper's tables."""


@dataclass(frozen=True)
class Setting:
    """The runs that differ in nothing but their seed."""

    method: str
    runs: tuple[Result, ...]

    @property
    def seeds(self) -> set[int]:
        return {run.config.seed for run in self.runs}

    def on(self, seeds: set[int]) -> Setting:
        """Return the same setting with only the runs of these seeds."""
        return Setting(self.method, tuple(r for r in self.runs if r.config.seed in seeds))

    def final(self, metric: str) -> float:
        """Return the mean over the seeds of a number of the last evaluation."""
        return sum(run.final(metric) for run in self.runs) / len(self.runs)

    def score(self, judge: Judge) -> float:
        """Return what the choice goes by; a run that diverged or has no number never wins."""
        value = self.final(_SCORE[judge])
        lost = math.isnan(value) or any(run.diverged for run in self.runs)
        return -math.inf if lost else value


def settings_of(results: Iterable[Result]) -> list[Setting]:
    """Group runs by everything but the seed."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        values = result.config.values()
        kept = {k: v for k, v in values.items() if k != "seed" and k not in MACHINE_KEYS}
        groups.setdefault(json.dumps(kept, sort_keys=True), []).append(result)
    return [Setting(runs[0].method, tuple(runs)) for runs in groups.values()]


def best(results: Iterable[Result], judge: Judge = "test") -> dict[str, Setting]:
    """Return the best setting of every method; among equals the one with the smaller rates."""
    rivals: dict[str, list[Setting]] = {}
    for setting in settings_of(results):
        rivals.setdefault(setting.method, []).append(setting)
    return {method: _winner(settings, judge) for method, settings in rivals.items()}


def _winner(settings: Sequence[Setting], judge: Judge) -> Setting:
    def merit(setting: Setting) -> tuple[float, float, float]:
        config = setting.runs[0].config
        return setting.score(judge), -config.client_lr, -config.server_lr

    return best_on_shared_seeds(settings, merit)


class Repeated(Protocol):
    """Some runs that differ in their seed alone."""

    @property
    def seeds(self) -> set[int]: ...

    def on(self, seeds: set[int]) -> Self: ...


S = TypeVar("S", bound=Repeated)


def best_on_shared_seeds(settings: Sequence[S], merit: Callable[[S], Any]) -> S:
    """Return the setting of the largest merit on the seeds that all settings have.

    So one that was repeated with more seeds after it had won is not judged by other runs than its
    rivals.
    """
    shared = set.intersection(*(setting.seeds for setting in settings))
    return max(settings, key=lambda setting: merit(setting.on(shared) if shared else setting))


def can_validate(results: Sequence[Result]) -> bool:
    """Tell whether every run has a validation part to choose by."""
    return bool(results) and all(r.config.validation_fraction > 0 for r in results)


def row(setting: Setting, judge: Judge) -> dict[str, Any]:
    """Return one row of a table: the method, what it scored, and at which rates."""
    config = setting.runs[0].config
    conflicts = [run.conflicts_per_round() for run in setting.runs]
    return {
        "method": setting.method,
        **{column: setting.final(column) for column in COLUMNS},
        "conflicts": sum(conflicts) / len(conflicts),
        "client_lr": config.client_lr,
        "server_lr": config.server_lr,
        "seeds": len(setting.runs),
        "chosen_on": judge,
    }
