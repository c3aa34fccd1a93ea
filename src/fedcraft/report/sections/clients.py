"""What single clients get: the distribution of accuracies, the radar, the spread."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedcraft.report.groups import Entry, Problem
from fedcraft.report.series import plain

__all__ = ["accuracies", "distribution", "radar", "spread"]


def accuracies(entry: Entry) -> np.ndarray:
    """The final test accuracies of all clients, seeds together."""
    return np.concatenate([run.client_accuracy.to_numpy(dtype=float) for run in entry.runs])


def distribution(problem: Problem) -> dict[str, Any] | None:
    """The sorted final accuracies of every method's clients."""
    found = {entry.name: np.sort(accuracies(entry)) for entry in problem.entries}
    series = [{"method": m, "values": plain(v)} for m, v in found.items() if len(v)]
    return {"series": series} if series else None


def radar(problem: Problem) -> dict[str, Any] | None:
    """Best tenth, mean and worst tenth of every method (the paper's radar: a spoke a method)."""
    names = ("best10", "mean", "worst10")
    spokes = {e.name: [e.chosen.final(name) for name in names] for e in problem.entries}
    drawn = {m: plain(v) for m, v in spokes.items() if all(map(math.isfinite, v))}
    return {"spokes": drawn} if drawn else None


def spread(problem: Problem) -> dict[str, Any] | None:
    """The standard deviation over clients, with its spread over seeds."""
    bars = {e.name: [e.chosen.final("std"), e.chosen.spread("std")] for e in problem.entries}
    drawn = {method: plain(v) for method, v in bars.items() if math.isfinite(v[0])}
    return {"bars": drawn} if drawn else None
