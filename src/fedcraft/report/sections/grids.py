"""Heat maps: final mean accuracy over learning rates, and the labels of the clients."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedcraft.report.extras import needs
from fedcraft.report.series import plain
from fedcraft.runs.select import Entry, Problem, Setting

with needs("pandas"):
    import pandas as pd

__all__ = ["example_labels", "label_shares", "labels", "learning_rates", "rate_grid"]

_EXAMPLE_CLIENTS = 30
_RATES = {"client_lr", "server_lr"}


def rate_grid(entry: Entry) -> pd.DataFrame | None:
    """Final mean accuracy, client learning rates down and server learning rates across.

    Where several settings share a pair of rates, the one that would be shown counts; a diverged
    one is NaN. ``None`` without a grid.
    """
    pairs: dict[tuple[float, float], list[Setting]] = defaultdict(list)
    for setting in entry.settings:
        if set(setting.config) >= _RATES:
            pairs[setting.config["client_lr"], setting.config["server_lr"]].append(setting)
    means = {pair: _shown(entry, settings).sound_mean for pair, settings in pairs.items()}
    if len(means) < 2 or all(map(math.isnan, means.values())):
        return None
    return pd.Series(means).rename_axis(["client_lr", "server_lr"]).unstack()


def learning_rates(problem: Problem) -> dict[str, Any] | None:
    """A grid of final means for every method that was run at several learning rates."""
    grids = [(entry, rate_grid(entry)) for entry in problem.entries]
    drawn = {entry.name: _cells(entry, grid) for entry, grid in grids if grid is not None}
    return {"grids": drawn} if drawn else None


def label_shares(entries: Iterable[Entry]) -> pd.DataFrame | None:
    """Samples of each label (columns) at each client (rows), from the first run that has them.

    Clients and labels have their names, if there are any.
    """
    for run in (run for entry in entries for run in entry.runs):
        found = run.frame("labels")
        if {"client", "label", "count"} <= set(found.columns) and len(found):
            counts = found.pivot_table(
                index="client", columns="label", values="count", aggfunc="sum", fill_value=0
            )
            return counts.sort_index().rename(
                index=run.names("owners"), columns=run.names("classes")
            )
    return None


def example_labels(counts: pd.DataFrame) -> pd.DataFrame:
    """At most thirty clients, evenly spread over the client ids."""
    places = np.linspace(0, len(counts) - 1, min(len(counts), _EXAMPLE_CLIENTS)).round()
    return counts.iloc[np.unique(places.astype(int))]


def labels(problem: Problem) -> dict[str, Any] | None:
    """Example clients, the share of each label at them, and how uneven all clients are."""
    counts = label_shares(problem.entries)
    if counts is None:
        return None
    sizes = counts.sum(axis=1)
    shares = counts.div(sizes.clip(lower=1), axis=0)
    examples = example_labels(shares)
    return {
        "clients": [str(client) for client in examples.index],
        "labels": [str(label) for label in examples.columns],
        "shares": [plain(row, 3) for row in examples.to_numpy()],
        "samples": [int(sizes[client]) for client in examples.index],
        "total_clients": len(counts),
        "size_range": [int(sizes.min()), int(sizes.median()), int(sizes.max())],
        "top_share": float(round(shares.max(axis=1).median(), 3)),
    }


def _shown(entry: Entry, settings: list[Setting]) -> Setting:
    """The setting that represents a pair of rates; for the pair in the table, that of the table."""
    return entry.chosen if entry.chosen in settings else entry.best_among(settings, entry.judge)


def _cells(entry: Entry, grid: pd.DataFrame) -> dict[str, Any]:
    chosen = entry.chosen.config
    return {
        "chosen": [
            grid.index.get_loc(chosen["client_lr"]),
            grid.columns.get_loc(chosen["server_lr"]),
        ],
        "client_lr": [float(rate) for rate in grid.index],
        "server_lr": [float(rate) for rate in grid.columns],
        "mean": [plain(row) for row in grid.to_numpy()],
    }
