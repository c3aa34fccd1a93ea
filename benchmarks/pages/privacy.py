"""The measured tables of docs/privacy.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.pages.markdown import table

__all__ = ["privacy_blocks"]

Rows = list[dict[str, Any]]
WAYS = ("plain", "secure", "limited", "secure and limited")


def privacy_blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks of the page."""
    folder = results / "benchmarks"

    def stored(name: str) -> Any:
        return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))

    steps = stored("secure-steps")
    return {
        "secure-steps": _steps(steps),
        "secure-limited": _limited(steps),
        "secure-accuracy": _accuracy(stored("secure-accuracy")),
        "secure-cost": _cost(stored("secure-cost")),
        "privacy-cost": _privacy(stored("privacy-cost")),
    }


def _steps(measured: Rows) -> str:
    """Without a limit on shares: one row per data set, constraint, sketch size and sums."""
    heads = ("data, constraint, k", "sums", "error", "cosine", "largest share, median round")
    rows = [
        (
            f"{row['dataset']}, {row['constraint']}, {row['sketch']}",
            row["sums"],
            f"{100 * row['error_largest']:.2f} %",
            f"{row['cosine_least']:.5f}",
            f"{row['share_median']:.2f}",
        )
        for row in measured
        if row["most_share"] == 1
    ]
    return table(heads, rows)


def _limited(measured: Rows) -> str:
    """With the limit: how close the step comes to that of exact Gram matrices under it."""
    heads = (
        "data, constraint",
        "sums",
        "error, median round",
        "error, worst round",
        "cosine, worst round",
        "rounds in which it acts",
    )
    rows = [
        (
            f"{row['dataset']}, {row['constraint']}",
            row["sums"],
            f"{100 * row['error_median']:.2f} %",
            f"{100 * row['error_largest']:.1f} %",
            f"{row['cosine_least']:.4f}",
            f"{row['rounds_with_spread_layers']} of {row['rounds']}",
        )
        for row in measured
        if row["most_share"] < 1
    ]
    return table(heads, rows)


def _cost(measured: Rows) -> str:
    """Bytes and seconds per round against plain FedAvg and Flower's SecAgg+."""
    heads = (
        "parameters",
        "clients",
        "sums",
        "up, MB",
        "/ plain",
        "/ SecAgg+",
        "down, MB",
        "client, s",
        "server, s",
        "/ SecAgg+",
        "/ FedAvg, same protocol",
    )
    rows = [
        (
            f"{row['parameters']:,}",
            row["clients"],
            row["sums"],
            f"{row['up'] / 1e6:.2f}",
            f"{row['up'] / row['up_plain']:.2f}",
            f"{row['up'] / row['up_secagg']:.2f}",
            f"{row['down'] / 1e6:.2f}",
            f"{row['client_seconds']:.2g}",
            f"{row['server_seconds']:.2g}",
            f"{row['server_seconds'] / row['server_seconds_secagg']:.2f}",
            f"{row['server_seconds'] / row['server_seconds_sums']:.2f}",
        )
        for row in measured
    ]
    return table(heads, rows)


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


def _privacy(measured: Rows) -> str:
    """Accuracy by budget."""
    lines = [
        (row["budget"], f"{row['noise']:.2g}", f"{row['mean']:.3f}", f"{row['worst10']:.3f}")
        for row in measured
    ]
    return table(("epsilon", "noise z", "mean accuracy", "worst 10 %"), lines)
