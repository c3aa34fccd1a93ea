"""The cost of every method's server in a round, as a multiple of the plain weighted average.

    python -m benchmarks.methods [--seconds 4] [--json FILE]

Methods that differ only in their client objective share a row. A round is one aggregation and one
step of the server optimiser, on one thread; the updates are the same for all. Two disjoint cohorts
take turns, so a rule with history finds one cohort's uploads in it. FedMDFG's line search is not
part of the server's work: it is one evaluation of all participants for each trial.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from time import thread_time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import fedcraft
from benchmarks.aggregation import measure, synthetic_updates
from benchmarks.shapes import MODELS, resnet_layers
from fedcraft.aggregators import aggregator
from fedcraft.methods import Method, method, methods
from fedcraft.server_optimizers import server_optimizer

BASE = "plain average"
COMPARED = ("FedLF", "CAGrad", "Nash-MTL", "UPGrad")


def by_tensor(layers: list[int]) -> list[int]:
    """Cut a ResNet's layers into parameter tensors: weights, then two norm vectors or a bias."""
    *convolutions, head = layers
    widths = [16] * 7 + [32] * 6 + [64] * 6
    cut = [
        part
        for size, width in zip(convolutions, widths, strict=True)
        for part in (size - 2 * width, width, width)
    ]
    return [*cut, head - 10, 10]


CASES: dict[str, tuple[list[int], int]] = {
    "MLP, m = 10": (MODELS["MLP"], 10),
    "ResNet-20, m = 100": (MODELS["ResNet-20"], 100),
    "ResNet-20 by tensor, m = 100": (by_tensor(resnet_layers(3)), 100),
}


def server_sides() -> dict[str, Method]:
    """Return one method for every distinct server side, by the titles of all that share it."""
    sides: dict[str, tuple[list[str], Method]] = {}
    for row in methods():
        chosen = method(row.name)
        key = f"{chosen.aggregator} | {chosen.server}"
        sides.setdefault(key, ([], chosen))[0].append(chosen.title)
    return {", ".join(titles): chosen for titles, chosen in sides.values()}


def round_of(chosen: Method, updates: Tensor, sizes: list[int], certify: bool) -> Callable[[], Any]:
    """Return a callable that runs one more round at each call."""
    rule = aggregator(chosen.aggregator.name, **chosen.aggregator.params, certify=certify)
    optimizer = server_optimizer(chosen.server.name, lr=0.1, **chosen.server.params)
    layout = fedcraft.Layout.from_sizes(sizes)
    clients = updates.shape[0]
    draw = torch.Generator().manual_seed(1)
    losses = torch.rand(clients, generator=draw) + 0.5
    steps = torch.randint(1, 9, (clients,), generator=draw)
    numbers = count()

    def run() -> Any:
        first = clients * (next(numbers) % 2)
        step = rule.aggregate(
            updates,
            weights=steps,
            layers=layout,
            client_ids=range(first, first + clients),
            losses=losses,
            steps=steps,
            client_lr=0.1,
        )
        return optimizer.step(step.direction)

    for _ in range(3):  # a history that has filled up
        run()
    return run


def measure_case(sizes: list[int], clients: int, seconds: float) -> dict[str, dict[str, float]]:
    updates = synthetic_updates(clients, sizes, 0)
    weights = torch.full((clients,), 1 / clients)
    results: dict[str, dict[str, float]] = {}
    for title, chosen in server_sides().items():
        columns: dict[str, Callable[[], Any]] = {
            BASE: lambda: torch.mv(updates.T, weights),
            "certified": round_of(chosen, updates, sizes, certify=True),
            "bare": round_of(chosen, updates, sizes, certify=False),
        }
        results[title] = measure(columns, seconds, thread_time)
    return results


def show(results: dict[str, dict[str, dict[str, float]]]) -> None:
    for case, rows in results.items():
        table = Table(title=f"The server's round: {case}, one thread")
        for heading in ("method", "ms", "x average", "without certificate, ms", "x average"):
            table.add_column(heading, justify="left" if heading == "method" else "right")
        for title, seconds in rows.items():
            cells = [title]
            for kind in ("certified", "bare"):
                cells += [f"{1e3 * seconds[kind]:.1f}", f"{seconds[kind] / seconds[BASE]:.1f}"]
            table.add_row(*cells)
        Console(width=140).print(table)
        craft = _time_of(rows, "CRAFT")
        ratios = (f"{title} {_time_of(rows, title) / craft:.2f}" for title in COMPARED)
        print(f"Times CRAFT: {', '.join(ratios)}\n")


def _time_of(rows: dict[str, dict[str, float]], title: str) -> float:
    return next(s["certified"] for titles, s in rows.items() if title in titles.split(", "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each method and case")
    parser.add_argument("--json", type=Path, help="also write the raw seconds here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {
        name: measure_case(sizes, clients, options.seconds)
        for name, (sizes, clients) in CASES.items()
    }
    show(results)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
