"""The accuracy of single clients: distribution, radar, spread."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedcraft.report.extras import needs
from fedcraft.report.packing import shares
from fedcraft.report.series import plain
from fedcraft.runs.select import Entry, Problem

with needs("pandas"):
    import pandas as pd

_WORST = 5


def accuracies(entry: Entry) -> np.ndarray:
    """The final test accuracies of all clients, seeds together."""
    return np.concatenate([np.array([*run.accuracies().values()]) for run in entry.runs])


def distribution(problem: Problem) -> dict[str, Any] | None:
    """The sorted final accuracies of every method's clients."""
    found = {entry.name: np.sort(accuracies(entry)) for entry in problem.entries}
    series = [{"method": m, "values": shares(v)} for m, v in found.items() if len(v)]
    worst = {e.label: names for e in problem.entries if (names := worst_named(e))}
    return {"series": series, "worst": worst} if series else None


def worst_named(entry: Entry) -> list[str]:
    """The owners with the least accuracy over all seeds; none where clients are not owners."""
    scored = [(run.accuracies(), run.names("owners")) for run in entry.runs]
    named = [pd.Series(found).rename(names) for found, names in scored if found and names]
    if not named:
        return []
    means = pd.concat(named).groupby(level=0).mean().nsmallest(_WORST)
    return [f"{name} {value:.3f}" for name, value in means.items()]


def radar(problem: Problem) -> dict[str, Any] | None:
    """Best tenth, mean and worst tenth of every method (the paper's radar)."""
    names = ("best10", "mean", "worst10")
    spokes = {e.name: [e.chosen.final(name) for name in names] for e in problem.entries}
    drawn = {m: plain(v) for m, v in spokes.items() if all(map(math.isfinite, v))}
    return {"spokes": drawn} if drawn else None


def spread(problem: Problem) -> dict[str, Any] | None:
    """The standard deviation over clients, with its spread over seeds."""
    bars = {e.name: [e.chosen.final("std"), e.chosen.spread("std")] for e in problem.entries}
    drawn = {method: plain(v) for method, v in bars.items() if math.isfinite(v[0])}
    return {"bars": drawn} if drawn else None
