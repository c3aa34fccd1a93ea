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


def page() -> str:
    """The page with both tables."""
    return filled(PAGE, {"secure-steps": steps_table(), "secure-cost": cost_table()})


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
