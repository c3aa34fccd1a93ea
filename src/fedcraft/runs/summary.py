"""The paper's table: a row for every method of a problem, with intervals, and what is marked best.

A number is best only if the 95 % interval of its paired difference to every other method excludes
zero. Numbers after different rounds are never ranked against each other: only the methods with the
most rounds are, and :func:`note` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedcraft.errors import InputError
from fedcraft.metrics.intervals import Interval, difference, interval
from fedcraft.registry import did_you_mean
from fedcraft.runs.select import Entry, Problem

Row = Mapping[str, Any]

BASELINE = "fedavg"
"""The method that others are compared with, unless another one is named."""

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


def rows(problems: Iterable[Problem], baseline: str | None = None) -> list[dict[str, Any]]:
    """Return one row for each problem and method, at the setting that is shown.

    Keys: ``problem, dataset, model, method, label``; the final ``mean, best10, worst10, std``
    averaged over seeds; ``mean_sd`` over seeds (NaN for one); ``conflicts_before`` (under the plain
    average) and ``conflicts`` (under the method's own step) per round; ``rounds`` (the last one at
    which all these seeds were evaluated), ``seeds`` (evaluated so far), ``settings`` (how many were
    tried), ``client_lr, server_lr``, ``state``; ``diverged`` (how many seeds ended in NaN or Inf:
    where there are any, the numbers are not a result). ``chosen_on`` says whether validation or
    test data chose the setting; ``mean_on_test`` is the mean that test data choose.

    For each of mean, best10, worst10 and std, X: ``X_low, X_high`` (95 % interval over clients and
    seeds), ``X_gain, X_gain_low, X_gain_high`` (difference to the ``baseline`` over the ``pairs``
    of equal seeds, with its interval) and ``X_place`` (see :func:`marks`). The baseline is FedAvg
    where it was run, unless one is named.
    """
    listed = list(problems)
    require_baseline(baseline, (entry.name for problem in listed for entry in problem.entries))
    return [row for problem in listed for row in _rows(problem, baseline_of(problem, baseline))]


def require_baseline(baseline: str | None, methods: Iterable[str]) -> None:
    """Raise ``InputError`` if ``baseline`` is not one of the methods, or None for the usual one."""
    known = dict.fromkeys(methods)
    if baseline is not None and baseline not in known:
        raise InputError(
            f"baseline should be one of {', '.join(known)}, but is {baseline!r}."
            f"{did_you_mean(baseline, known)}"
        )


def baseline_of(problem: Problem, name: str | None = None) -> Entry | None:
    """Return the entry that the others are compared with, if the problem has it."""
    return problem.entry(name or BASELINE)


def _rows(problem: Problem, baseline: Entry | None) -> list[dict[str, Any]]:
    found = [
        _row(problem, entry) | _intervals(entry) | _gains(entry, baseline)
        for entry in problem.entries
    ]
    for metric in METRICS:
        for row, place in zip(found, _places(problem, found, metric), strict=True):
            row[f"{metric.key}_place"] = place
    return found


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


def _intervals(entry: Entry) -> dict[str, float]:
    samples = [*entry.chosen.samples.values()]
    found = {column: interval(samples, column) for column in COLUMNS}
    return {f"{c}_{end}": getattr(i, end) for c, i in found.items() for end in ("low", "high")}


def _gains(entry: Entry, baseline: Entry | None) -> dict[str, Any]:
    other = baseline if entry is not baseline else None
    found = {column: gain(entry, other, column) for column in COLUMNS}
    numbers = {
        f"{column}_gain{end}": value
        for column, gained in found.items()
        for end, value in zip(("", "_low", "_high"), gained, strict=True)
    }
    pairs = len(_shared_seeds(entry, other)) if other else 0
    return {"baseline": baseline.name if baseline else "", "pairs": pairs, **numbers}


def gain(entry: Entry, other: Entry | None, column: str) -> Interval:
    """Return the entry's number minus the other's with its interval, over the seeds of both.

    There is none between numbers after different rounds, or of a method that diverged.
    """
    seeds = _shared_seeds(entry, other) if other else []
    if not other or not seeds:
        return Interval(math.nan, math.nan, math.nan)
    ours, theirs = ([e.chosen.samples[seed] for seed in seeds] for e in (entry, other))
    return difference(ours, theirs, column)


def _shared_seeds(entry: Entry, other: Entry) -> list[int]:
    ours, theirs = entry.chosen, other.chosen
    if ours.rounds != theirs.rounds or ours.diverged or theirs.diverged:
        return []
    return sorted(ours.samples.keys() & theirs.samples.keys())


def _places(problem: Problem, rows: Sequence[Row], metric: Metric) -> list[int]:
    """Return the marks of one column; those of conflicts, which have no interval, are all 0."""
    ranked = [r for r in rivals(rows) if math.isfinite(r[metric.key])]
    if metric.key not in COLUMNS or not ranked:
        return [0] * len(rows)
    sign = 1 if metric.higher_is_better else -1
    best = max(ranked, key=lambda row: sign * row[metric.key])
    entries = {entry.name: entry for entry in problem.entries}
    compared = {
        row["method"]: gain(entries[best["method"]], entries[row["method"]], metric.key)
        for row in ranked
        if row is not best and metric.text(row[metric.key]) != metric.text(best[metric.key])
    }
    worse = {name for name, lead in compared.items() if lead.sign == sign}
    if not worse:
        return [0] * len(rows)
    first = [row["method"] for row in ranked if row["method"] not in worse]
    repeated = all(len(_shared_seeds(entries[first[0]], entries[name])) > 1 for name in worse)
    place = 1 if len(first) == 1 and repeated else 2
    return [place if row["method"] in first else 0 for row in rows]


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
    """Return the mark of each row in one column: 1 for best, 2 for one of the best, 0 otherwise.

    The interval decides. Best is the row whose number is better than that of every other ranked
    row, over several seeds. Otherwise the rows that are not shown to be worse than the best number
    are among the best. Nothing is marked where that are all of them, or no interval is known.
    """
    return [int(row.get(f"{metric.key}_place", 0)) for row in rows]


def places(values: Sequence[float], metric: Metric) -> list[int]:
    """Return 1 for the best value, 2 for the second best, 0 for the rest; equal if written equal.

    This is how papers mark numbers without intervals. A column whose values are all written equal
    has no best.
    """
    written = [metric.written(value) if math.isfinite(value) else None for value in values]
    ordered = sorted({v for v in written if v is not None}, reverse=metric.higher_is_better)
    places = dict(zip(ordered, (1, 2), strict=False)) if len(ordered) > 1 else {}
    return [places.get(value, 0) if value is not None else 0 for value in written]


def spread(row: Row) -> str:
    """Return the standard deviation of the mean over seeds as tables write it, if there is one."""
    return METRICS[0].text(row["mean_sd"]) if math.isfinite(row["mean_sd"]) else ""


def one_seed(rows: Sequence[Row]) -> str:
    """Return a warning if intervals of one problem's rows do not cover the seeds."""
    ranked = rivals(rows)
    once = [row["label"] for row in ranked if row["seeds"] == 1 and interval_text(row, METRICS[0])]
    if not once:
        return ""
    if len(ranked) == 1:
        return "One seed: the intervals cover the clients, not the seeds."
    who = "One seed each" if len(once) == len(ranked) else f"One seed of {', '.join(once)}"
    return f"{who}: the intervals cover the clients, not the seeds, so no number is marked as best."


def interval_text(row: Row, metric: Metric) -> str:
    """Return the 95 % interval of a number as tables write it, if there is one."""
    low, high = (row.get(f"{metric.key}_{end}", math.nan) for end in ("low", "high"))
    return f"[{metric.text(low)}, {metric.text(high)}]" if math.isfinite(low) else ""


def gain_text(row: Row, metric: Metric) -> str:
    """Return the difference to the baseline with its interval as tables write it, if known."""
    numbers = [row.get(f"{metric.key}_gain{end}", math.nan) for end in ("", "_low", "_high")]
    if not all(map(math.isfinite, numbers)):
        return ""
    value, low, high = (f"{number:+.{metric.decimals}f}" for number in numbers)
    return f"{value} [{low}, {high}]"


def gain_place(row: Row, metric: Metric) -> int:
    """Return 1 if the interval over several seeds says that the row is better than the baseline."""
    if row.get("pairs", 0) < 2:
        return 0
    low, high = (row.get(f"{metric.key}_gain_{end}", math.nan) for end in ("low", "high"))
    return int(low > 0 if metric.higher_is_better else high < 0)


def _sound(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not row["diverged"] and math.isfinite(row["mean"])]
