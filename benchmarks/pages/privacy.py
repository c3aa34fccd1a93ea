"""The measured tables of docs/privacy.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.pages.markdown import table

__all__ = ["privacy_blocks"]

Rows = list[dict[str, Any]]
WAYS = ("plain", "secure", "limited", "secure and limited")


Columns = list[tuple[str, Callable[[dict[str, Any]], object]]]
"""The heading of each column, and what it shows of a row."""

# Without a limit on shares: one row per data set, constraint, sketch size and sums.
STEPS: Columns = [
    ("data, constraint, k", lambda row: f"{row['dataset']}, {row['constraint']}, {row['sketch']}"),
    ("sums", lambda row: row["sums"]),
    ("error", lambda row: f"{100 * row['error_largest']:.2f} %"),
    ("cosine", lambda row: f"{row['cosine_least']:.5f}"),
    ("largest share, median round", lambda row: f"{row['share_median']:.2f}"),
]
# With the limit: how close the step comes to that of exact Gram matrices under it.
LIMITED: Columns = [
    ("data, constraint", lambda row: f"{row['dataset']}, {row['constraint']}"),
    ("sums", lambda row: row["sums"]),
    ("error, median round", lambda row: f"{100 * row['error_median']:.2f} %"),
    ("error, worst round", lambda row: f"{100 * row['error_largest']:.1f} %"),
    ("cosine, worst round", lambda row: f"{row['cosine_least']:.4f}"),
    (
        "rounds in which it acts",
        lambda row: f"{row['rounds_with_spread_layers']} of {row['rounds']}",
    ),
]
# Bytes and seconds per round against plain FedAvg and Flower's SecAgg+.
COST: Columns = [
    ("parameters", lambda row: f"{row['parameters']:,}"),
    ("clients", lambda row: row["clients"]),
    ("sums", lambda row: row["sums"]),
    ("up, MB", lambda row: f"{row['up'] / 1e6:.2f}"),
    ("/ plain", lambda row: f"{row['up'] / row['up_plain']:.2f}"),
    ("/ SecAgg+", lambda row: f"{row['up'] / row['up_secagg']:.2f}"),
    ("down, MB", lambda row: f"{row['down'] / 1e6:.2f}"),
    ("client, s", lambda row: f"{row['client_seconds']:.2g}"),
    ("server, s", lambda row: f"{row['server_seconds']:.2g}"),
    ("/ SecAgg+", lambda row: f"{row['server_seconds'] / row['server_seconds_secagg']:.2f}"),
    (
        "/ FedAvg, same protocol",
        lambda row: f"{row['server_seconds'] / row['server_seconds_sums']:.2f}",
    ),
]
# Accuracy by budget.
BUDGET: Columns = [
    ("mode", lambda row: "–" if row["budget"] == "inf" else row["mode"]),
    ("epsilon", lambda row: row["budget"]),
    ("noise z", lambda row: f"{row['noise']:.2g}"),
    ("seeds", lambda row: row["seeds"]),
    ("mean accuracy", lambda row: "diverged" if row["mean"] is None else f"{row['mean']:.3f}"),
    ("worst 10 %", lambda row: "" if row["worst10"] is None else f"{row['worst10']:.3f}"),
]


def privacy_blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks of the page."""
    folder = results / "benchmarks"

    def stored(name: str) -> Any:
        return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))

    steps = stored("secure-steps")
    return {
        "secure-steps": _shown(STEPS, [row for row in steps if row["most_share"] == 1]),
        "secure-limited": _shown(LIMITED, [row for row in steps if row["most_share"] < 1]),
        "secure-accuracy": _accuracy(stored("secure-accuracy")),
        "secure-cost": _shown(COST, stored("secure-cost")),
        "privacy-cost": _shown(BUDGET, _over_seeds(stored("privacy-cost"))),
    }


def _shown(columns: Columns, rows: Rows) -> str:
    heads = [heading for heading, _ in columns]
    return table(heads, ([show(row) for _, show in columns] for row in rows))


def _over_seeds(measured: Rows) -> Rows:
    """One row per mode and budget, with the means over its seeds; None if one has diverged."""
    groups: dict[tuple[str, str], Rows] = {}
    for row in measured:
        groups.setdefault((row["mode"], row["budget"]), []).append(row)

    def mean(rows: Rows, key: str) -> float | None:
        values = [row[key] for row in rows if row[key] is not None]
        return fmean(values) if len(values) == len(rows) else None

    keys = ("noise", "mean", "worst10")
    return [
        {"mode": mode, "budget": budget, "seeds": len(rows), **{k: mean(rows, k) for k in keys}}
        for (mode, budget), rows in groups.items()
    ]


def _accuracy(measured: Rows) -> str:
    """Final accuracy by way of aggregation, over the seeds that have all of them."""
    found: dict[tuple[str, int, str], dict[str, dict[int, float]]] = {}
    for row in measured:
        case = (row["dataset"], row["rounds"], row["method"])
        ways = found.setdefault(case, {way: {} for way in WAYS})
        ways[row["way"]][row["seed"]] = row["mean"]
    lines = []
    for (dataset, rounds, method), ways in found.items():
        seeds = set.intersection(*(set(values) for values in ways.values()))
        if seeds:
            means = {w: sum(ways[w][s] for s in seeds) / len(seeds) for w in WAYS}
            plain, secure, limited, both = (means[way] for way in WAYS)
            secure_text = f"{secure:.3f} ({secure - plain:+.3f})"
            both_text = f"{both:.3f} ({both - limited:+.3f})"
            name, values = f"{dataset}, {rounds} rounds, {method}", (f"{plain:.3f}", secure_text)
            lines.append((name, len(seeds), *values, f"{limited:.3f}", both_text))
    heads = ("data, method", "seeds", "plain", "secure", "plain with limit", "secure, defaults")
    return table(heads, lines)
