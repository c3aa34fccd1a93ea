"""Heat maps: final mean accuracy over learning rates, and the labels of the clients."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedcraft.report.extras import needs
from fedcraft.report.names import class_names
from fedcraft.report.sections.one_client import client_groups, label_counts
from fedcraft.report.series import plain
from fedcraft.runs import Run
from fedcraft.runs.select import Entry, Problem, Setting

with needs("pandas"):
    import pandas as pd

_EXAMPLE_CLIENTS = 30
_RATES = {"client_lr", "server_lr"}


def rate_grid(entry: Entry) -> pd.DataFrame | None:
    """Final mean accuracy, client learning rates down and server learning rates across.

    Where several settings share a pair of rates, the one that would be shown counts; a diverged
    one is NaN. ``None`` without a grid.
    """
    means = {pair: setting.sound_mean for pair, setting in _by_rates(entry).items()}
    if len(means) < 2 or all(map(math.isnan, means.values())):
        return None
    return pd.Series(means).rename_axis(["client_lr", "server_lr"]).unstack()


def _by_rates(entry: Entry) -> dict[tuple[float, float], Setting]:
    """Return the setting that represents each pair of rates."""
    pairs: dict[tuple[float, float], list[Setting]] = defaultdict(list)
    for setting in entry.settings:
        if set(setting.config) >= _RATES:
            pairs[setting.config["client_lr"], setting.config["server_lr"]].append(setting)
    return {pair: _shown(entry, settings) for pair, settings in pairs.items()}


def learning_rates(problem: Problem) -> dict[str, Any] | None:
    """A grid of final means for every method that was run at several learning rates."""
    grids = [(entry, rate_grid(entry)) for entry in problem.entries]
    drawn = {entry.name: _cells(entry, grid) for entry, grid in grids if grid is not None}
    return {"grids": drawn} if drawn else None


def label_shares(entries: Iterable[Entry]) -> pd.DataFrame | None:
    """Samples of each label (columns) at each client (rows), from the first run that has them.

    Clients and labels have their names, if there are any.
    """
    run = _labelled(entries)
    if run is None:
        return None
    return label_counts(run).rename(index=run.names("owners"), columns=class_names(run))


def _labelled(entries: Iterable[Entry]) -> Run | None:
    runs = (run for entry in entries for run in entry.runs)
    return next((run for run in runs if len(label_counts(run))), None)


def example_labels(counts: pd.DataFrame) -> pd.DataFrame:
    """At most thirty clients, evenly spread over the client ids."""
    places = np.linspace(0, len(counts) - 1, min(len(counts), _EXAMPLE_CLIENTS)).round()
    return counts.iloc[np.unique(places.astype(int))]


def labels(problem: Problem) -> dict[str, Any] | None:
    """Example clients, the share of each label at them, and how uneven all clients are."""
    run = _labelled(problem.entries)
    if run is None:
        return None
    counts, owners, classes = label_counts(run), run.names("owners"), class_names(run)
    sizes = counts.sum(axis=1)
    shares = counts.div(sizes.clip(lower=1), axis=0)
    examples = example_labels(shares)
    groups = client_groups(problem)
    return {
        "group": next(i for i, runs in enumerate(groups) if run in runs.values()),
        "ids": [int(client) for client in examples.index],
        "clients": [owners.get(client, str(client)) for client in examples.index],
        "labels": [classes.get(label, str(label)) for label in examples.columns],
        "shares": [plain(row, 3) for row in examples.to_numpy()],
        "samples": [int(sizes[client]) for client in examples.index],
        "most": float(examples.to_numpy().max()),
        "total_clients": len(counts),
        "size_range": [int(sizes.min()), int(sizes.median()), int(sizes.max())],
        "top_share": float(round(shares.max(axis=1).median(), 3)),
    }


def _blank(setting: Setting | None) -> str:
    """Why a cell has no number; empty if it has one."""
    if setting is None:
        return "not run"
    if setting.diverged:
        return "diverged"
    return "" if math.isfinite(setting.sound_mean) else "not evaluated yet"


def _edges(entry: Entry, grid: pd.DataFrame) -> list[str]:
    """The rates of the chosen cell that lie at the edge of the grid: better ones may lie beyond."""
    chosen = entry.chosen.config
    ends = {"client_lr": ("client", grid.index), "server_lr": ("server", grid.columns)}
    return [
        f"{'largest' if chosen[key] == rates.max() else 'smallest'} {name} rate"
        for key, (name, rates) in ends.items()
        if len(rates) > 1 and chosen[key] in (rates.min(), rates.max())
    ]


def _shown(entry: Entry, settings: list[Setting]) -> Setting:
    """The setting that represents a pair of rates; for the pair in the table, that of the table."""
    return entry.chosen if entry.chosen in settings else entry.best_among(settings, entry.judge)


def _cells(entry: Entry, grid: pd.DataFrame) -> dict[str, Any]:
    chosen = entry.chosen.config
    found = _by_rates(entry)
    pairs = [[(float(row), float(column)) for column in grid.columns] for row in grid.index]
    settings = [[found.get(pair) for pair in line] for line in pairs]
    return {
        "seeds": [[len(s.seeds) if s else 0 for s in line] for line in settings],
        "blanks": [[_blank(s) for s in line] for line in settings],
        "edges": _edges(entry, grid),
        "chosen": [
            grid.index.get_loc(chosen["client_lr"]),
            grid.columns.get_loc(chosen["server_lr"]),
        ],
        "client_lr": [float(rate) for rate in grid.index],
        "server_lr": [float(rate) for rate in grid.columns],
        "mean": [plain(row) for row in grid.to_numpy()],
    }
