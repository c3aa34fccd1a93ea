"""Numbers along the rounds: averaged over seeds, thinned to what a chart can show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedcraft.report.extras import needs
from fedcraft.report.groups import Setting
from fedcraft.report.runs import RunData

with needs("pandas"):
    import pandas as pd

__all__ = ["conflicts_per_round", "curve", "mean_seconds", "plain", "thin"]

_MOST_POINTS = 300
PHASES = ("train", "aggregate", "evaluate", "idle")


def curve(setting: Setting, metric: str) -> pd.DataFrame:
    """Columns ``mean`` and ``sd`` (over seeds) of an evaluation metric, index ``round``.

    Only rounds that every started seed has reached: an average over fewer seeds would jump.
    """
    table = setting.shared(metric).astype(float)
    return pd.DataFrame({"mean": table.mean(axis=1), "sd": table.std(axis=1, ddof=1)})


def conflicts_per_round(runs: Iterable[RunData], stage: str) -> float:
    """Conflicting clients per round at ``stage`` (average, reference, after), over runs.

    Only rounds that all of them have done: conflicts change along a run.
    """
    members = list(runs)
    done = min((run.last_round for run in members), default=0)
    records = [record for run in members for record in run.rounds if record["round"] <= done]
    counts = [(record.get("conflicts") or {}).get(stage) for record in records]
    known = [count for count in counts if count is not None]
    return float(np.mean(known)) if known else math.nan


def mean_seconds(runs: Iterable[RunData]) -> dict[str, float]:
    """Seconds per round of each phase, averaged over rounds and seeds."""
    spent = [r["seconds"] for run in runs for r in run.rounds if isinstance(r.get("seconds"), dict)]
    # Round 0 only evaluates; it is no round of training.
    rounds = [s for s in spent if any(s.get(phase) for phase in ("train", "aggregate"))]
    # The engine counts the waiting of workers as training; apart, the two add up.
    rounds = [s | {"train": max(0.0, _phase(s, "train") - _phase(s, "idle"))} for s in rounds]
    names = [*PHASES, *sorted({name for s in rounds for name in s} - {*PHASES, "total"})]
    return {
        name: float(np.mean([_phase(s, name) for s in rounds]))
        for name in names
        if any(name in s for s in rounds)
    }


def _phase(seconds: Mapping[str, float | None], name: str) -> float:
    return seconds.get(name) or 0.0


def thin(frame: pd.DataFrame, most: int = _MOST_POINTS) -> pd.DataFrame:
    """At most ``most`` rows, evenly spaced, the first and the last among them."""
    if len(frame) <= most:
        return frame
    return frame.iloc[np.unique(np.linspace(0, len(frame) - 1, most).round().astype(int))]


def plain(values: Sequence[Any] | np.ndarray | pd.Series, digits: int = 4) -> list[float | None]:
    """Numbers as JSON can hold them: rounded, and ``None`` for what is not finite."""
    array = np.asarray(values, dtype=float)
    return [float(f"{v:.{digits + 1}g}") if math.isfinite(v) else None for v in array]
