"""The cost of one CRAFT aggregation, beside the formula as written, ConFIG packages and a floor.

    python -m benchmarks.aggregation [--threads 1 2] [--quick] [--json FILE]

The floor is one Gram product and one weighted sum over the same layers, which no exact rule of this
kind can avoid. All columns are measured in turns in the same run; ratios are medians over medians.
Errors are relative to the formula in float64, on layers whose condition number is below 1000: in
float32, ``pinv`` itself loses up to three digits on wide layers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import fedcraft
from benchmarks.shapes import MODELS
from fedcraft.linalg import block_combine, block_grams

CASES = [
    ("MLP", 10),
    ("CNN", 10),
    ("ResNet-20", 10),
    ("ResNet-20", 100),
    ("ResNet-110", 10),
    ("ResNet-110", 100),
    ("ResNet-20", 500),
]
WELL_POSED = 1e3


def synthetic_updates(clients: int, sizes: list[int], seed: int) -> Tensor:
    """Updates with a common part, so that clients agree a little, as real ones do."""
    generator = torch.Generator().manual_seed(seed)
    dimension = sum(sizes)
    own = torch.randn(clients, dimension, generator=generator)
    return 0.01 * own + 0.004 * torch.randn(dimension, generator=generator)


def pinv_formula(updates: Tensor, previous: Tensor, rho: Tensor, slices: list[slice]) -> Tensor:
    """Eq. 4.7 as it is written, with ``torch.linalg.pinv`` for every layer."""
    parts = []
    for block in slices:
        units = torch.nn.functional.normalize(updates[:, block], dim=1)
        anchor = torch.nn.functional.normalize(previous[block], dim=0)
        parts.append(anchor + torch.linalg.pinv(units) @ (rho - units @ anchor))
    return torch.cat(parts)


def exact_layer(updates: Tensor, previous: Tensor, rho: Tensor) -> Tensor | None:
    """The formula in float64 through the normal equations; None where U is nearly singular."""
    units = torch.nn.functional.normalize(updates.double(), dim=1)
    anchor = torch.nn.functional.normalize(previous.double(), dim=0)
    kernel = units @ units.T
    values = torch.linalg.eigvalsh(kernel)
    if float(values[0]) * WELL_POSED**2 < float(values[-1]):
        return None
    coefficients = torch.linalg.solve(kernel, rho.double() - units @ anchor)
    return anchor + torch.mv(units.T, coefficients)


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def contenders(
    updates: Tensor, sizes: list[int], threads_seed: int
) -> tuple[dict[str, Callable[[], Any]], Callable[[], tuple[float, float]]]:
    """Return one callable per column, and the errors of CRAFT and of pinv against float64."""
    from conflictfree.grad_operator import ConFIG_update
    from torchjd.aggregation import ConFIG

    layout = fedcraft.Layout.from_sizes(sizes)
    slices = list(layout.slices)
    clients = updates.shape[0]
    rho = torch.full((clients,), 1 / clients)
    first = synthetic_updates(clients, sizes, threads_seed + 1)
    previous = torch.as_tensor(
        fedcraft.aggregator("craft").aggregate(first, layers=layout).direction
    )
    ones = torch.ones(len(sizes), clients)
    state = {"reference": previous, "dimension": layout.dimension, "rule": "Craft"}

    def craft(certify: bool) -> Tensor:
        rule = fedcraft.aggregator("craft", certify=certify)
        rule.load_state_dict(state)
        return torch.as_tensor(rule.aggregate(updates, layers=layout).direction)

    def agreement() -> tuple[float, float]:
        found, formula = craft(True), pinv_formula(updates, previous, rho, slices)
        worst = (0.0, 0.0)
        for block in slices:
            exact = exact_layer(updates[:, block], previous[block], rho)
            if exact is not None:
                errors = [_relative(v[block].double(), exact) for v in (found, formula)]
                worst = (max(worst[0], errors[0]), max(worst[1], errors[1]))
        return worst

    torchjd_config = ConFIG()
    columns: dict[str, Callable[[], Any]] = {
        "floor": lambda: (block_grams(updates, slices), block_combine(updates, ones, slices)),
        "craft": lambda: craft(True),
        "craft, no certificate": lambda: craft(False),
        "torchjd": lambda: [torchjd_config(updates[:, block]) for block in slices],
        "conflictfree": lambda: [ConFIG_update(updates[:, block]) for block in slices],
        "pinv": lambda: pinv_formula(updates, previous, rho, slices),
    }
    return columns, agreement


def measure(columns: dict[str, Callable[[], Any]], budget: float) -> dict[str, float]:
    """Return the median seconds per column; slow columns run once, the others in turns."""
    times: dict[str, list[float]] = {name: [] for name in columns}
    deadline = time.perf_counter() + budget
    for turn in range(200):
        for name, call in columns.items():
            if turn > 0 and times[name][0] > budget / 4:
                continue
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
        if time.perf_counter() > deadline and turn >= 4:
            break
    return {name: statistics.median(t[1:] or t) for name, t in times.items()}


def run(cases: list[tuple[str, int]], threads: list[int], budget: float) -> list[dict[str, Any]]:
    rows = []
    for model, clients in cases:
        updates = synthetic_updates(clients, MODELS[model], 0)
        columns, agreement = contenders(updates, MODELS[model], 0)
        for count in threads:
            torch.set_num_threads(count)
            seconds = measure(columns, budget)
            rows.append(
                {
                    "model": model,
                    "clients": clients,
                    "threads": count,
                    "seconds": seconds,
                    "errors": agreement() if count == threads[0] else None,
                }
            )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="One aggregation, milliseconds (and ratios)")
    for title in ("model", "m", "threads", "floor", "CRAFT", "no cert."):
        table.add_column(title, justify="right")
    for title in ("CRAFT/floor", "cert. cost", "torchjd/CRAFT", "conflictfree/CRAFT"):
        table.add_column(title, justify="right")
    table.add_column("pinv/CRAFT", justify="right")
    table.add_column("error CRAFT", justify="right")
    table.add_column("error pinv", justify="right")
    for row in rows:
        s = row["seconds"]
        table.add_row(
            row["model"],
            str(row["clients"]),
            str(row["threads"]),
            *(f"{1e3 * s[name]:.1f}" for name in ("floor", "craft", "craft, no certificate")),
            f"{s['craft'] / s['floor']:.2f}",
            f"{100 * (s['craft'] / s['craft, no certificate'] - 1):+.0f} %",
            *(f"{s[name] / s['craft']:.1f}" for name in ("torchjd", "conflictfree", "pinv")),
            *(["", ""] if row["errors"] is None else [f"{e:.1e}" for e in row["errors"]]),
        )
    Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true", help="only the MLP and ResNet-20, m <= 100")
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each case")
    parser.add_argument("--json", type=Path, help="also write the raw seconds here")
    options = parser.parse_args()
    cases = [CASES[0], CASES[3]] if options.quick else CASES
    rows = run(cases, options.threads, options.seconds)
    show(rows)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
