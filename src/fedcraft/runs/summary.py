"""The paper's table: a row for every method of a problem, and the numbers marked as best.

Rows contain the number of rounds. Numbers after different rounds are never ranked against each
other: only the methods with the most rounds are, and :func:`note` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedcraft.runs.select import Entry, Problem

__all__ = ["COLUMNS", "METRICS", "Metric", "marks", "note", "places", "rivals", "rows", "spread"]

Row = Mapping[str, Any]

COLUMNS = ("mean", "best10", "worst10", "std")
"""The columns of the paper's tables."""


@dataclass(frozen=True)
class Metric:
    """A column of the table: its key, its heading, its direction and its decimals."""

    key: str
    heading: str
    higher_is_better: bool
    decimals: int
    meaning: str

    def text(self, value: float) -> str:
        """Return the value in the form that tables show."""
        return f"{value:.{self.decimals}f}" if math.isfinite(value) else "–"

    def written(self, value: float) -> float:
        """Return the value that a reader sees; round() goes another way at some ties."""
        return float(f"{value:.{self.decimals}f}")


METRICS = (
    Metric("mean", "Mean", True, 3, "mean test accuracy over clients"),
    Metric("best10", "Best 10 %", True, 3, "mean accuracy of the best tenth of the clients"),
    Metric("worst10", "Worst 10 %", True, 3, "mean accuracy of the worst tenth of the clients"),
    Metric("std", "Std", False, 3, "standard deviation of accuracy over clients"),
    Metric("conflicts", "Conflicts", False, 1, "clients per round that the step works against"),
)


def rows(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """Return one row for each problem and method, at the setting that is shown.

    Keys: ``problem, dataset, model, method, label``; the final ``mean, best10, worst10, std``
    averaged over seeds; ``mean_sd`` over seeds (NaN for one); ``conflicts_before`` (under the plain
    average) and ``conflicts`` (under the method's own step) per round; ``rounds`` (the last one at
    which all these seeds were evaluated), ``seeds`` (evaluated so far), ``settings`` (how many were
    tried), ``client_lr, server_lr``, ``state``; ``diverged`` (how many seeds ended in NaN or Inf:
    where there are any, the numbers are not a result). ``chosen_on`` says whether validation or
    test data chose the setting; ``mean_on_test`` is the mean that test data choose.
    """
    return [_row(problem, entry) for problem in problems for entry in problem.entries]


def _row(problem: Problem, entry: Entry) -> dict[str, Any]:
    setting = entry.chosen
    return {
        "problem": problem.title,
        "dataset": problem.config.get("dataset"),
        "model": problem.config.get("model"),
        "method": entry.name,
        "label": entry.label,
        **{column: setting.final(column) for column in COLUMNS},
        "mean_sd": setting.spread("mean"),
        "conflicts_before": setting.conflicts("average"),
        "conflicts": setting.conflicts("after"),
        "rounds": setting.rounds,
        "seeds": len(setting.seeds),
        "settings": len(entry.settings),
        "client_lr": setting.config.get("client_lr", math.nan),
        "server_lr": setting.config.get("server_lr", math.nan),
        "state": setting.state,
        "diverged": setting.diverged,
        "chosen_on": entry.judge,
        "mean_on_test": entry.best("test").final("mean"),
    }


def rivals(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one problem that are ranked: those with the most rounds, none diverged."""
    sound = _sound(rows)
    most = max((row["rounds"] for row in sound), default=0)
    return [row for row in sound if row["rounds"] == most]


def note(rows: Sequence[Row]) -> str:
    """Return a note on the marks of one problem's rows, if one is needed."""
    ranked = rivals(rows)
    if len(ranked) == len(_sound(rows)):
        return ""
    most = ranked[0]["rounds"]
    if len(ranked) == 1:
        return "Rounds differ, so no number is marked as best."
    return f"Rounds differ: only the methods at {most} rounds are ranked."


def marks(rows: Sequence[Row], metric: Metric) -> list[int]:
    """Return the place of each row of one problem: 1 for best, 2 for second best, 0 otherwise."""
    ranked = rivals(rows)
    return places([row[metric.key] if row in ranked else math.nan for row in rows], metric)


def places(values: Sequence[float], metric: Metric) -> list[int]:
    """Return 1 for the best value, 2 for the second best, 0 for the rest; equal if written equal.

    A column whose values are all written equal has no best.
    """
    written = [metric.written(value) if math.isfinite(value) else None for value in values]
    ordered = sorted({v for v in written if v is not None}, reverse=metric.higher_is_better)
    places = dict(zip(ordered, (1, 2), strict=False)) if len(ordered) > 1 else {}
    return [places.get(value, 0) if value is not None else 0 for value in written]


def spread(row: Row) -> str:
    """Return the standard deviation of the mean over seeds as tables write it, if there is one."""
    return METRICS[0].text(row["mean_sd"]) if math.isfinite(row["mean_sd"]) else ""


def _sound(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not row["diverged"] and math.isfinite(row["mean"])]
