"""The result in one or two sentences, with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedcraft.report.series import curve
from fedcraft.runs.select import Problem
from fedcraft.runs.summary import METRICS, Metric, gain, marks, note, one_seed, rivals

_MOST_NAMES = 3
_MEAN, _WORST = (metric for metric in METRICS if metric.key in ("mean", "worst10"))


Rows = Sequence[Mapping[str, Any]]


def verdict(problem: Problem, table: Rows) -> str:
    """Name the methods with the best mean and the best worst tenth, the lead, and its certainty.

    A method is called better than others only where the marks of the table say so.
    """
    lost = [row["label"] for row in table if row["diverged"]]
    ranked = sorted(rivals(table), key=lambda row: -row["mean"])
    said = [_result(problem, table, ranked), f"{_listed(lost)} diverged." if lost else ""]
    return " ".join(filter(None, said)) or "No evaluation has been written yet."


def _result(problem: Problem, table: Rows, ranked: Rows) -> str:
    if not ranked:
        return ""
    if len(ranked) == 1:
        return " ".join(filter(None, [_alone(ranked[0]), _uneven(table)]))
    said = [_mean(problem, table, ranked), _tail(table, ranked)]
    said.append(_uneven(table) or _caution(problem, table, ranked))
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


def _mean(problem: Problem, table: Rows, ranked: Rows) -> str:
    value, leaders = _leaders(ranked, "mean")
    if len(leaders) > 1:
        return f"{_listed(leaders)} share the highest mean accuracy, {value:.3f}."
    second, others = _leaders(ranked[1:], "mean")
    place, rest = _standing(table, ranked, _MEAN)
    lead = f"{value - second:.3f} above {_listed(others)}"
    if place == 1:
        lead += _interval(problem, ranked)
        return f"{leaders[0]} has the best mean accuracy, {value:.3f}, {lead}."
    doubt = f"; the intervals do not separate it from {_listed(rest)}" if rest else ""
    return f"{leaders[0]} has the highest mean accuracy, {value:.3f}, {lead}{doubt}."


def _interval(problem: Problem, ranked: Rows) -> str:
    first, second = (problem.entry(row["method"]) for row in ranked[:2])
    lead = gain(first, second, "mean") if first and second else None
    return f" (95 % interval {lead.low:.3f} to {lead.high:.3f})" if lead else ""


def _tail(table: Rows, ranked: Rows) -> str:
    tails = sorted(ranked, key=lambda row: -row["worst10"])
    tails = [row for row in tails if math.isfinite(row["worst10"])]
    if not tails:
        return ""
    value, leaders = _leaders(tails, "worst10")
    if len(leaders) == len(tails):
        return f"All methods leave the worst tenth of the clients at {value:.3f}."
    place, rest = _standing(table, tails, _WORST)
    known = leaders == _leaders(ranked, "mean")[1]
    who = _listed(leaders) if not known else "It also" if len(leaders) == 1 else "They also"
    verb, rank = "has" if len(leaders) == 1 else "have", "best" if place == 1 else "highest"
    doubt = f"; the intervals do not separate it from {_listed(rest)}" if rest else ""
    return f"{who} {verb} the {rank} worst tenth of the clients, {value:.3f}{doubt}."


def _standing(table: Rows, ranked: Rows, metric: Metric) -> tuple[int, list[str]]:
    """Return the mark of the highest number, and the other methods that may be as good."""
    leader = max(ranked, key=lambda row: row[metric.key])
    places = dict(zip((row["method"] for row in table), marks(table, metric), strict=True))
    others = [row for row in ranked if row is not leader]
    if not any(places.values()):  # all of them may be the best, or no interval is known
        known = all(math.isfinite(row[f"{metric.key}_low"]) for row in ranked)
        return 0, [row["label"] for row in others] if known else []
    return places[leader["method"]], [r["label"] for r in others if places[r["method"]] == 2]


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


def _caution(problem: Problem, table: Rows, ranked: Rows) -> str:
    """The reservations: unfinished runs, a single seed, no interval; or when the lead began."""
    if any(row["state"] == "running" for row in ranked):
        return "Some runs are still in progress: this is the state so far."
    if not all(math.isfinite(row["mean_low"]) for row in ranked[:2]):
        return "The runs hold no accuracies of single clients, so there are no intervals."
    if one_seed(ranked[:2]):
        return one_seed(ranked[:2])
    if _standing(table, ranked, _MEAN)[0] != 1:
        return ""
    return _sooner(problem, ranked[0]["method"], ranked[1]["mean"])


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
