"""The result in one or two sentences, with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedcraft.report.series import curve
from fedcraft.runs.select import Problem
from fedcraft.runs.summary import METRICS, note, rivals

__all__ = ["verdict"]

_MOST_NAMES = 3


Rows = Sequence[Mapping[str, Any]]


def verdict(problem: Problem, table: Rows) -> str:
    """Name the methods with the best mean and the best worst tenth, the lead, and its certainty."""
    lost = [row["label"] for row in table if row["diverged"]]
    ranked = sorted(rivals(table), key=lambda row: -row["mean"])
    said = [_result(problem, table, ranked), f"{_listed(lost)} diverged." if lost else ""]
    return " ".join(filter(None, said)) or "No evaluation has been written yet."


def _result(problem: Problem, table: Rows, ranked: Rows) -> str:
    if not ranked:
        return ""
    if len(ranked) == 1:
        return " ".join(filter(None, [_alone(ranked[0]), _uneven(table)]))
    said = [_best(ranked), _tail(ranked), _uneven(table) or _caution(problem, ranked)]
    return " ".join(filter(None, said))


def _alone(row: Mapping[str, Any]) -> str:
    return (
        f"{row['label']} reaches a mean accuracy of {row['mean']:.3f} "
        f"after {row['rounds']} rounds; its worst tenth of the clients has {row['worst10']:.3f}."
    )


def _uneven(table: Rows) -> str:
    """Warn first if some methods have done fewer rounds."""
    if not note(table):
        return ""
    rounds = sorted({r["rounds"] for r in table if not r["diverged"] and math.isfinite(r["mean"])})
    return f"The methods are at different rounds ({rounds[0]} to {rounds[-1]}). {note(table)}"


def _best(ranked: Rows) -> str:
    value, leaders = _leaders(ranked, "mean")
    if len(leaders) > 1:
        return f"{_listed(leaders)} share the best mean, {value:.3f}."
    second, others = _leaders(ranked[1:], "mean")
    return (
        f"{leaders[0]} has the best mean accuracy, {value:.3f}, "
        f"{value - second:.3f} above {_listed(others)}."
    )


def _tail(ranked: Rows) -> str:
    tails = [row for row in ranked if math.isfinite(row["worst10"])]
    if not tails:
        return ""
    value, leaders = _leaders(tails, "worst10")
    if len(leaders) == len(tails):
        return f"All methods leave the worst tenth of the clients at {value:.3f}."
    one = len(leaders) == 1
    known = leaders == _leaders(ranked, "mean")[1]
    who = _listed(leaders) if not known else "It also" if one else "They also"
    return f"{who} {'has' if one else 'have'} the best worst tenth of the clients, {value:.3f}."


def _leaders(ranked: Rows, key: str) -> tuple[float, list[str]]:
    """Return the largest value as it is written, and the names of all that have it."""
    metric = next(metric for metric in METRICS if metric.key == key)
    written = [metric.written(row[key]) for row in ranked]
    best = max(written)
    return best, [row["label"] for row, value in zip(ranked, written, strict=True) if value == best]


def _listed(names: list[str]) -> str:
    if len(names) > _MOST_NAMES:
        return f"{names[0]} and {len(names) - 1} others"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _caution(problem: Problem, ranked: Rows) -> str:
    """The reservations: unfinished runs, a single seed, a gap within the noise."""
    if any(row["state"] == "running" for row in ranked):
        return "Some runs are still in progress: this is the state so far."
    top = ranked[:2]
    once = [row["label"] for row in top if math.isnan(row["mean_sd"])]
    if once:
        who = "One seed each" if len(once) == len(top) else f"{once[0]} has one seed"
        return f"{who}: small gaps may be chance."
    return _lead(problem, ranked)


def _lead(problem: Problem, ranked: Rows) -> str:
    """Compare the lead with the noise, and say when it was reached; nothing without a lead."""
    if len(_leaders(ranked, "mean")[1]) > 1:
        return ""
    first, second = ranked[:2]
    noise = max(first["mean_sd"], second["mean_sd"])
    if first["mean"] - second["mean"] < noise:
        return f"The seeds differ by {noise:.3f}, so the lead in the mean may be chance."
    return _sooner(problem, first["method"], second["mean"])


def _sooner(problem: Problem, method: str, level: float) -> str:
    """The round after which the winner passed the runner-up's final mean."""
    entry = problem.entry(method)
    if entry is None:
        return ""
    rounds = curve(entry.chosen, "mean")["mean"]
    passed = rounds[rounds >= level]
    if passed.empty or passed.index[0] == rounds.index[-1]:
        return ""
    return f"{entry.label} passed the runner-up's final mean after round {int(passed.index[0])}."
