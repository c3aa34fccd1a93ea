"""Conflicts before and after, round by round and layer by layer."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fedcraft.report.extras import needs
from fedcraft.report.names import layer_title
from fedcraft.report.series import plain, thin
from fedcraft.runs import Run
from fedcraft.runs.select import Entry, Problem

with needs("pandas"):
    import pandas as pd

STAGES = {
    "average": "Plain average",
    "reference": "Reference direction",
    "after": "Step taken",
}
_WHOLE = "all"
_MOST_BINS = 100
_SMOOTH_POINTS = 20  # counts of single rounds vary too much to be readable


def conflicts(problem: Problem) -> dict[str, Any] | None:
    """Per method: conflicts by round and stage, smallest cosine by layer and round, correction.

    Layers and corrections come from the first seed; their averages over seeds hide the extremes.
    """
    views = {entry.name: _view(entry) for entry in problem.entries}
    drawn = {method: view for method, view in views.items() if view}
    if not drawn:
        return None
    longest = max(len(view.get("rounds", ())) for view in drawn.values())
    return {"stages": STAGES, "smoothed": longest >= 2 * _SMOOTH_POINTS, "methods": drawn}


def cosine_grid(run: Run) -> pd.DataFrame | None:
    """Smallest cosine between step and client: layers down, (bins of) rounds across."""
    table = run.frame("conflicts")
    if not {"round", "layer", "min_cosine"} <= set(table.columns) or table.empty:
        return None
    rounds = np.sort(table["round"].unique())
    bins = np.array_split(rounds, min(len(rounds), _MOST_BINS))
    first = {number: int(part[0]) for part in bins for number in part}
    binned = table.assign(round=table["round"].map(first))
    grid = binned.pivot_table(
        index="layer", columns="round", values="min_cosine", aggfunc="min", sort=False
    )
    layers = [layer for layer in grid.index if layer != _WHOLE]
    whole = [_WHOLE] if _WHOLE in grid.index else []
    title = partial(layer_title, names=run.names("layers"))
    return grid.loc[[*layers, *whole]].rename(index=title).sort_index(axis=1)


def _view(entry: Entry) -> dict[str, Any]:
    run = entry.runs[0]
    counts = smooth_conflicts(run)
    grid, correction = cosine_grid(run), _correction(run)
    view: dict[str, Any] = {}
    if not counts.empty:
        view["rounds"] = [int(number) for number in counts.index]
        view["counts"] = {stage: plain(counts[stage]) for stage in counts.columns}
    if grid is not None:
        view["recorded"] = _recorded(run)
        view["layers"] = [str(layer) for layer in grid.index]
        view["bins"] = [int(number) for number in grid.columns]
        view["cosine"] = [plain(row, 2) for row in grid.to_numpy()]
    if not correction.empty:
        view["correction"] = {
            "x": [int(number) for number in correction.index],
            "y": plain(correction["norm"]),
        }
    return view


def _recorded(run: Run) -> str:
    """In which rounds cosines and corrections were written, if not in all."""
    table = run.frame("conflicts")
    rounds = int(table["round"].nunique()) if "layer" in table.columns else 0
    if not rounds or rounds >= run.last_round:
        return ""
    return f"Written in {rounds} of {run.last_round} rounds."


def smooth_conflicts(run: Run) -> pd.DataFrame:
    """Conflicts per round: a column per stage, each a running mean over 1/20 of the run."""
    rows = {
        record["round"]: {stage: record["conflicts"].get(stage) for stage in STAGES}
        for record in run.records
        if isinstance(record.get("conflicts"), dict)
    }
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=list(STAGES), dtype=float)
    known = frame.dropna(axis=1, how="all").dropna(axis=0, how="all")
    window = max(1, len(known) // _SMOOTH_POINTS)
    return thin(known.rolling(window, min_periods=1, center=True).mean())


def _correction(run: Run) -> pd.DataFrame:
    table = run.frame("conflicts")
    if not {"round", "layer", "correction_norm"} <= set(table.columns):
        return pd.DataFrame()
    whole = table[table["layer"] == _WHOLE].dropna(subset=["correction_norm"])
    norms = whole.drop_duplicates("round", keep="last").set_index("round")["correction_norm"]
    return thin(pd.DataFrame({"norm": norms})) if (norms != 0).any() else pd.DataFrame()
