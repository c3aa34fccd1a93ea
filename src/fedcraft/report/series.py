"""Numbers by round: averaged over seeds, and thinned out for charts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedcraft.report.extras import needs
from fedcraft.runs import Run
from fedcraft.runs.select import Setting

with needs("pandas"):
    import pandas as pd

_MOST_POINTS = 300
PHASES = ("train", "aggregate", "evaluate", "idle")


def curve(setting: Setting, metric: str) -> pd.DataFrame:
    """Columns ``mean`` and ``sd`` (over seeds) of an evaluation metric, index ``round``.

    Only rounds that every started seed has reached: an average over fewer seeds would jump.
    """
    points = {
        number: (statistics.fmean(values), statistics.stdev(values) if values[1:] else math.nan)
        for number, values in setting.shared(metric).items()
    }
    return pd.DataFrame.from_dict(points, "index", columns=["mean", "sd"], dtype=float)


def mean_seconds(runs: Iterable[Run]) -> dict[str, float]:
    """Seconds per round of each phase, averaged over rounds and seeds."""
    spent = [
        r["seconds"] for run in runs for r in run.records if isinstance(r.get("seconds"), dict)
    ]
    # Round 0 only evaluates; it is not a round of training.
    rounds = [s for s in spent if any(s.get(phase) for phase in ("train", "aggregate"))]
    # The engine counts idle workers as training; here the two are separate and add up.
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
    """Numbers for JSON: rounded, and ``None`` for NaN and Inf."""
    array = np.asarray(values, dtype=float)
    return [float(f"{v:.{digits + 1}g}") if math.isfinite(v) else None for v in array]
