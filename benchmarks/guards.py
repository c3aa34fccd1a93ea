"""What a guard adds to one aggregation: CRAFT behind each guard, beside CRAFT alone.

    python -m benchmarks.guards [--clients 100] [--repeats 9] [--json FILE]

The updates have the shape of ResNet-20, and a tenth of the clients send theirs with the sign
flipped. All columns are measured in turns in the same run, in CPU seconds of one thread; a ratio is
the median of the ratios to the plain aggregation of the same turn, because the load of a machine
changes slowly. The influence of every client (``certificate.clients``), which a run computes in the
rounds of its ``diagnostics_every``, is measured too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.aggregation import synthetic_updates
from benchmarks.shapes import MODELS
from fedcraft.aggregators import Aggregator, aggregator, guard

GUARDS = ("default", "multi_krum", "trust", "geometric_median", "centred_clipping", "norm_clipping")


def measure(clients: int, repeats: int) -> dict[str, Any]:
    """Return the seconds of the plain aggregation, and every guard's ratio to it."""
    sizes = MODELS["ResNet-20"]
    updates = synthetic_updates(clients, sizes, seed=1)
    updates[: clients // 10] *= -1
    rules: dict[str, Aggregator] = {name: _craft().guarded(guard(name)) for name in GUARDS}
    plain, seconds = _craft(), {"plain": list[float](), "influence": list[float]()}
    ratios: dict[str, list[float]] = {name: [] for name in (*GUARDS, "influence")}
    for _ in range(repeats + 1):  # the first turn warms up
        base, certificate = _seconds(plain, updates, sizes)
        seconds["plain"].append(base)
        started = time.process_time()
        assert certificate.clients is not None
        ratios["influence"].append(1 + (time.process_time() - started) / base)
        for name, rule in rules.items():
            ratios[name].append(_seconds(rule, updates, sizes)[0] / base)
    return {
        "clients": clients,
        "parameters": sum(sizes),
        "plain_seconds": statistics.median(seconds["plain"][1:]),
        "ratios": {name: round(statistics.median(found[1:]), 3) for name, found in ratios.items()},
    }


def _craft() -> Aggregator:
    return aggregator("craft")


def _seconds(rule: Aggregator, updates: torch.Tensor, sizes: list[int]) -> tuple[float, Any]:
    started = time.process_time()
    step = rule.aggregate(updates, layers=sizes)
    return time.process_time() - started, step.certificate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(chosen.clients, chosen.repeats)
    table = Table(title=f"CRAFT at m = {chosen.clients}, ResNet-20: {found['plain_seconds']:.3f} s")
    table.add_column("with")
    table.add_column("times plain CRAFT", justify="right")
    for name, ratio in found["ratios"].items():
        table.add_row(name, f"{ratio:.2f}")
    Console().print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
