"""Gains and losses against FedAvg, client by client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedcraft.report.extras import needs
from fedcraft.report.packing import packed, shares
from fedcraft.report.sections.one_client import client_groups
from fedcraft.runs import Run
from fedcraft.runs.select import Entry, Problem
from fedcraft.runs.summary import BASELINE

with needs("pandas"):
    import pandas as pd

_NO_CHANGE = 1e-9


def client_gains(entry: Entry, baseline: Entry) -> pd.DataFrame:
    """Columns ``seed, client, name, baseline, accuracy, gain``, sorted by gain.

    Only runs over the same split (the same hash) are paired: otherwise client 7 of one run is not
    client 7 of the other. The frame is empty when no pair is found.
    """
    pairs = [(run, other) for run in entry.runs if (other := _partner(run, baseline))]
    frames = [_paired(run, other) for run, other in pairs]
    columns = ["seed", "client", "name", "baseline", "accuracy", "gain"]
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return pd.DataFrame(columns=columns)
    joined = pd.concat(frames, ignore_index=True)
    return joined.sort_values("gain", kind="stable", ignore_index=True)[columns]


def gains(problem: Problem) -> dict[str, Any] | None:
    """Every method's differences to FedAvg, and how many clients win, lose, stay, by seed."""
    baseline = problem.entry(BASELINE)
    rivals = [entry for entry in problem.entries if entry is not baseline]
    if baseline is None or not rivals:
        return None
    groups = client_groups(problem)
    tables = {entry.name: client_gains(entry, baseline) for entry in rivals}
    drawn = {m: _by_seed(table, m, groups) for m, table in tables.items() if len(table)}
    unpaired = [entry.label for entry in rivals if entry.name not in drawn]
    return {"baseline": baseline.label, "methods": drawn, "unpaired": unpaired}


def _partner(run: Run, baseline: Entry) -> Run | None:
    same = [b for b in baseline.runs if run.split_hash and b.split_hash == run.split_hash]
    return min(same, key=lambda b: b.seed != run.seed, default=None)


def _paired(run: Run, other: Run) -> pd.DataFrame:
    ours, theirs = pd.Series(run.accuracies()), pd.Series(other.accuracies())
    both = pd.DataFrame({"baseline": theirs, "accuracy": ours}, dtype=float).dropna()
    both = both.rename_axis("client").reset_index()
    owners = run.names("owners")
    names = [owners.get(client, str(client)) for client in both["client"]]
    return both.assign(seed=run.seed, name=names, gain=both["accuracy"] - both["baseline"])


def _by_seed(table: pd.DataFrame, method: str, groups: Sequence[dict[str, Run]]) -> list[Any]:
    place = {runs[method].seed: i for i, runs in enumerate(groups) if method in runs}
    return [
        {"seed": int(seed), "group": place[int(seed)], **_columns(table[table["seed"] == seed])}
        for seed in sorted(table["seed"].unique())
    ]


def _columns(table: pd.DataFrame) -> dict[str, Any]:
    gain = table["gain"].to_numpy(dtype=float)
    return {
        "clients": packed(table["client"]),
        "gain": shares(1 + np.where(np.abs(gain) < _NO_CHANGE, 0.0, gain)),
        "winners": int((gain > _NO_CHANGE).sum()),
        "losers": int((gain < -_NO_CHANGE).sum()),
        "same": int((np.abs(gain) <= _NO_CHANGE).sum()),
    }
