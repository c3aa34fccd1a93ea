"""Our numbers beside those of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedcraft.runs.select import Entry, Problem
from fedcraft.runs.summary import COLUMNS, METRICS
from fedcraft.studies.presets import ROUNDS
from fedcraft.studies.results import rank_correlation

Rows = Sequence[Mapping[str, Any]]


def published(problem: Problem, reference: Rows | None) -> dict[str, Any] | None:
    """Each method at the rates that test data choose, as in the paper, and the paper's numbers.

    ``reference`` has ``method`` and any of ``mean, best10, worst10, std``. Differences and the
    rank correlation are left out unless every run has the paper's number of rounds.
    """
    theirs = {str(row["method"]).lower(): row for row in reference or ()}
    entries = [entry for entry in problem.entries if entry.name in theirs]
    if not entries:
        return None
    comparable = all(entry.best("test").rounds == ROUNDS for entry in entries)
    pairs = [
        {"mean": _ours(entry, "mean"), "mean_paper": float(theirs[entry.name]["mean"])}
        for entry in entries
        if "mean" in theirs[entry.name]
    ]
    correlation = rank_correlation(pairs) if comparable else math.nan
    return {
        "columns": [metric.heading for metric in METRICS if metric.key in COLUMNS],
        "rows": [_row(entry, theirs[entry.name], comparable) for entry in entries],
        "comparable": comparable,
        "rounds": ROUNDS,
        "correlation": f"{correlation:.2f}" if math.isfinite(correlation) else "",
    }


def _ours(entry: Entry, column: str) -> float:
    return entry.best("test").final(column)


def _row(entry: Entry, paper: Mapping[str, Any], comparable: bool) -> dict[str, Any]:
    texts = {metric.key: metric.text for metric in METRICS}
    numbers = [(column, _ours(entry, column), paper.get(column)) for column in COLUMNS]
    mean = paper.get("mean")
    difference = _ours(entry, "mean") - float(math.nan if mean is None else mean)
    return {
        "label": entry.label,
        "cells": [
            (texts[column](ours), texts[column](float(math.nan if theirs is None else theirs)))
            for column, ours, theirs in numbers
        ],
        "difference": f"{difference:+.3f}".replace("-", "−") if comparable else "",
        "rounds": entry.best("test").rounds,
    }
