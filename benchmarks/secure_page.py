"""Writes the measured tables of docs/privacy.md from results/benchmarks/secure-*.json.

python -m benchmarks.secure_page [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.pages import filled, table

PAGE = Path("docs/privacy.md")
STEPS = Path("results/benchmarks/secure-steps.json")
COST = Path("results/benchmarks/secure-cost.json")
ACCURACY = Path("results/benchmarks/secure-accuracy.json")
PRIVACY = Path("results/benchmarks/privacy-cost.json")
WAYS = ("plain", "secure", "limited", "secure and limited")


def steps_table() -> str:
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
        for row in json.loads(STEPS.read_text())
        if row["most_share"] == 1
    ]
    return table(heads, rows)


def limited_table() -> str:
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
        for row in json.loads(STEPS.read_text())
        if row["most_share"] < 1
    ]
    return table(heads, rows)


def cost_table() -> str:
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
        for row in json.loads(COST.read_text())
    ]
    return table(heads, rows)


def accuracy_table() -> str:
    """Final accuracy by way of aggregation, over the seeds that have all of them."""
    found: dict[tuple[str, int, str], dict[str, dict[int, float]]] = {}
    for row in json.loads(ACCURACY.read_text()):
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


def privacy_table() -> str:
    """Accuracy by budget."""
    lines = [
        (row["budget"], f"{row['noise']:.2g}", f"{row['mean']:.3f}", f"{row['worst10']:.3f}")
        for row in json.loads(PRIVACY.read_text())
    ]
    return table(("epsilon", "noise z", "mean accuracy", "worst 10 %"), lines)


def page() -> str:
    """The page with all its tables."""
    blocks = {
        "secure-steps": steps_table(),
        "secure-limited": limited_table(),
        "secure-accuracy": accuracy_table(),
        "secure-cost": cost_table(),
        "privacy-cost": privacy_table(),
    }
    return filled(PAGE, blocks)


def main() -> None:
    """Write the page, or tell whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
    elif text != PAGE.read_text(encoding="utf-8"):
        sys.exit(f"{PAGE} is out of date: run python -m benchmarks.secure_page")


if __name__ == "__main__":
    main()
