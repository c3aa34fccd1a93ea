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


def steps_table() -> str:
    """One row per data set, constraint, sketch size and number of sums."""
    heads = ("data, constraint, k", "sums", "error", "cosine", "largest share, median round")
    rows = [
        (
            f"{row['dataset']}, {row['constraint']}, {row['sketch']}",
            row["sums"],
            f"{100 * row['error_largest']:.1f} %",
            f"{row['cosine_least']:.5f}",
            f"{row['share_median']:.2f}",
        )
        for row in json.loads(STEPS.read_text())
    ]
    return table(heads, rows)


def cost_table() -> str:
    """Bytes per client and round against plain FedAvg and Flower's SecAgg+."""
    heads = (
        "parameters",
        "clients",
        "sums",
        "up, MB",
        "against plain",
        "against SecAgg+",
        "down, MB",
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
        )
        for row in json.loads(COST.read_text())
    ]
    return table(heads, rows)


def accuracy_table() -> str:
    """Final accuracy in the plain and in the secure way, over the seeds that have both."""
    rows = json.loads(ACCURACY.read_text())
    found: dict[tuple[str, str], dict[bool, dict[int, float]]] = {}
    for row in rows:
        ways = found.setdefault((row["dataset"], row["method"]), {False: {}, True: {}})
        ways[bool(row["secure"])][row["seed"]] = row["mean"]
    lines = []
    for (dataset, method), ways in found.items():
        seeds = sorted(ways[False].keys() & ways[True].keys())
        if seeds:
            plain, secure = (sum(ways[way][s] for s in seeds) / len(seeds) for way in (False, True))
            difference = f"{secure - plain:+.3f}"
            lines.append(
                (f"{dataset}, {method}", len(seeds), f"{plain:.3f}", f"{secure:.3f}", difference)
            )
    return table(("data, method", "seeds", "plain", "secure", "difference"), lines)


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
