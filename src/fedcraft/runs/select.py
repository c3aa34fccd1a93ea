"""Which of several runs speaks for its method on its problem.

The paper reports the learning rates with the best mean *test* accuracy. That is not honest: the
test data had a say. Where clients keep a validation part, the rates are also chosen by it, and a
table says which of the two it shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, TypeVar

from fedcraft.config.schema import MACHINE_KEYS
from fedcraft.runs.problems import fingerprint, problem_of
from fedcraft.runs.reader import Result

__all__ = [
    "COLUMNS",
    "SCORE",
    "Judge",
    "Setting",
    "best",
    "best_on_shared_seeds",
    "by_problem",
    "can_validate",
    "finals",
    "row",
    "settings_of",
]

Judge = Literal["test", "validation"]
SCORE = {"test": "mean", "validation": "validation_mean"}
"""The number of an evaluation that each judge goes by."""

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
        values = finals(self.runs, metric)
        return sum(values) / len(values) if values else math.nan

    def score(self, judge: Judge) -> float:
        """Return what the choice goes by; a run that diverged or has no number never wins."""
        value = self.final(SCORE[judge])
        lost = math.isnan(value) or any(run.diverged for run in self.runs)
        return -math.inf if lost else value


class Ended(Protocol):
    """A run that may have diverged."""

    @property
    def diverged(self) -> bool: ...

    def final(self, metric: str) -> float: ...


def finals(runs: Iterable[Ended], metric: str) -> list[float]:
    """Return a number of the last evaluation of every seed that has been evaluated.

    None at all if a seed diverged before it was: those that are left would flatter the setting.
    """
    values = [(run.diverged, run.final(metric)) for run in runs]
    if any(diverged and not math.isfinite(value) for diverged, value in values):
        return []
    return [value for _, value in values if math.isfinite(value)]


def by_problem(results: Iterable[Result]) -> list[list[Result]]:
    """Group runs by problem, in the order in which the problems first appear."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        key = fingerprint(problem_of(result.config.values()))
        groups.setdefault(key, []).append(result)
    return list(groups.values())


def settings_of(results: Iterable[Result]) -> list[Setting]:
    """Group runs by everything but the seed."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        values = result.config.values()
        kept = {k: v for k, v in values.items() if k != "seed" and k not in MACHINE_KEYS}
        groups.setdefault(fingerprint(kept), []).append(result)
    return [Setting(runs[0].method, tuple(runs)) for runs in groups.values()]


def best(results: Iterable[Result], judge: Judge = "test") -> list[Setting]:
    """Return the best setting of every method, problem by problem.

    Among equals it is the one with the smaller rates.
    """
    rivals: dict[tuple[int, str], list[Setting]] = {}
    for number, runs in enumerate(by_problem(results)):
        for setting in settings_of(runs):
            rivals.setdefault((number, setting.method), []).append(setting)
    return [_winner(settings, judge) for settings in rivals.values()]


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
        "rounds": min(int(run.status.get("round", 0)) for run in setting.runs),
        "diverged": sum(run.diverged for run in setting.runs),
        "chosen_on": judge,
    }
