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
    texts = {metric.key: metric.text for metric in METRICS}
    theirs = {str(row["method"]).lower(): row for row in reference or ()}
    entries = [entry for entry in problem.entries if entry.name in theirs]
    if not entries:
        return None
    comparable = all(entry.best("test").rounds == ROUNDS for entry in entries)
    rows = [_row(entry, theirs[entry.name]) for entry in entries]
    correlation = rank_correlation(rows) if comparable else math.nan
    return {
        "columns": [metric.heading for metric in METRICS if metric.key in COLUMNS],
        "rows": [
            {
                "label": entry.label,
                "cells": [(texts[c](row[c]), texts[c](row[f"{c}_paper"])) for c in COLUMNS],
                "difference": _signed(row["mean"] - row["mean_paper"]) if comparable else "",
                "rounds": entry.best("test").rounds,
            }
            for entry, row in zip(entries, rows, strict=True)
        ],
        "comparable": comparable,
        "rounds": ROUNDS,
        "correlation": f"{correlation:.2f}" if math.isfinite(correlation) else "",
    }


def _row(entry: Entry, paper: Mapping[str, Any]) -> dict[str, float]:
    """Our numbers, and the paper's as ``mean_paper`` and so on; NaN where it has none."""
    ours = {column: entry.best("test").final(column) for column in COLUMNS}
    known = {column: paper.get(column) for column in COLUMNS}
    return ours | {f"{c}_paper": math.nan if v is None else float(v) for c, v in known.items()}


def _signed(difference: float) -> str:
    return f"{difference:+.3f}".replace("-", "−")
