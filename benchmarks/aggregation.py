"""The cost of one CRAFT aggregation, beside the formula as written, ConFIG packages and a floor.

    python -m benchmarks.aggregation [--data DIR] [--threads 1 2] [--quick] [--json FILE]

The floor is one Gram product and one weighted sum over the same layers (torch.mm and torch.mv),
which no exact rule of this kind can avoid. All columns are measured in turns in the same run;
ratios are medians over medians; one thread is measured in seconds of its CPU, which other programs
hardly change. Updates are random ones with a common part, and those of real clients, trained on the
spot (``benchmarks.captured``; without --data on scikit-learn's digits). Errors are relative to the
formula with the default limit, in float64, on layers whose condition number is below 1000: in
float32, ``pinv`` itself loses up to three digits on wide layers. Memory is the peak that one call
adds, as a share of the matrix.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import fedcraft
from benchmarks.captured import Round, capture, workloads
from benchmarks.shapes import MODELS
from fedcraft.aggregators.craft import GAIN

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


def exact_layer(updates: Tensor, previous: Tensor, rho: Tensor) -> tuple[Tensor, float]:
    """CRAFT's formula with its limit in float64, and the condition number of U."""
    units = torch.nn.functional.normalize(updates.double(), dim=1)
    anchor = torch.nn.functional.normalize(previous.double(), dim=0)
    values, vectors = torch.linalg.eigh(units @ units.T)
    gap = vectors.T @ (rho.double() - units @ anchor)
    coefficients = vectors @ (gap / values.clamp(min=GAIN**-2))
    condition = (values[-1] / values[0].clamp(min=1e-300)).sqrt()
    return anchor + torch.mv(units.T, coefficients), float(condition)


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


Columns = dict[str, Callable[[], Any]]
Errors = list[tuple[float, float, float]]  # by layer: condition, CRAFT's, pinv's (NaN if limited)


def contenders(case: Round) -> tuple[Columns, Callable[[], Errors]]:
    """Return one callable per column, and the errors of CRAFT and of pinv by layer."""
    from conflictfree.grad_operator import ConFIG_update
    from torchjd.aggregation import ConFIG

    updates, previous, sizes, weights = case
    layout = fedcraft.Layout.from_sizes(sizes)
    slices = list(layout.slices)
    rho, ones = weights.to(updates.dtype), torch.ones(len(updates))
    state = {"reference": previous, "dimension": layout.dimension, "rule": "Craft"}

    def craft(certify: bool) -> Tensor:
        rule = fedcraft.aggregator("craft", certify=certify)
        rule.load_state_dict(state)
        step = rule.aggregate(updates, weights=weights, layers=layout)
        return torch.as_tensor(step.direction)

    def errors() -> Errors:
        found, rows = craft(True), []
        formula = pinv_formula(updates, previous, rho, slices) if _compared(updates) else None
        for block in slices:
            exact, condition = exact_layer(updates[:, block], previous[block], weights)
            ours = _relative(found[block].double(), exact)
            theirs = math.nan if formula is None else _relative(formula[block].double(), exact)
            rows.append((condition, ours, theirs))
        return rows

    def floor() -> None:
        for block in slices:
            part = updates[:, block]
            torch.mm(part, part.T)
            torch.mv(part.T, ones)

    torchjd_config = ConFIG()
    columns: Columns = {
        "floor": floor,
        "craft": lambda: craft(True),
        "craft, no certificate": lambda: craft(False),
    }
    if _compared(updates):
        columns |= {
            "torchjd": lambda: [torchjd_config(updates[:, block]) for block in slices],
            "conflictfree": lambda: [ConFIG_update(updates[:, block]) for block in slices],
            "pinv": lambda: pinv_formula(updates, previous, rho, slices),
        }
    return columns, errors


def _compared(updates: Tensor) -> bool:
    """Leave the others out where each of their calls would take minutes."""
    return len(updates) < 1000


def synthetic(model: str, clients: int) -> Round:
    """Return a random round, with a step that CRAFT made from another one before it."""
    sizes, equal = MODELS[model], torch.full((clients,), 1 / clients, dtype=torch.float64)
    first = synthetic_updates(clients, sizes, 1)
    step = fedcraft.aggregator("craft").aggregate(first, layers=fedcraft.Layout.from_sizes(sizes))
    return Round(
        synthetic_updates(clients, sizes, 0), torch.as_tensor(step.direction), sizes, equal
    )


def added_memory(call: Callable[[], Any], matrix: Tensor) -> float:
    """Return the peak memory that a call adds, as a share of the matrix."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as peak:
        peak.write("5")
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) * 1024 / (matrix.numel() * matrix.element_size())


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def measure(
    columns: Columns, budget: float, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return the median seconds per column; slow columns run once, the others in turns."""
    times: dict[str, list[float]] = {name: [] for name in columns}
    deadline = time.perf_counter() + budget
    for turn in range(200):
        for name, call in columns.items():
            if turn > 0 and times[name][0] > budget / 4:
                continue
            start = clock()
            call()
            times[name].append(clock() - start)
        if time.perf_counter() > deadline and turn >= 4:
            break
    return {name: statistics.median(t[1:] or t) for name, t in times.items()}


def run(
    cases: Iterable[tuple[str, int, Callable[[], Round]]], threads: list[int], budget: float
) -> list[dict[str, Any]]:
    rows = []
    for model, clients, make in cases:
        case = make()
        columns, errors = contenders(case)
        columns["craft"]()
        for count in threads:
            torch.set_num_threads(count)
            clock = time.thread_time if count == 1 else time.perf_counter
            rows.append(
                {
                    "model": model,
                    "clients": clients,
                    "threads": count,
                    "seconds": measure(columns, budget, clock),
                    "layers": errors() if count == threads[0] else None,
                    "memory": added_memory(columns["craft"], case.updates),
                }
            )
            show(rows[-1:])
    return rows


def worst(row: dict[str, Any]) -> tuple[float, float] | None:
    """Return the largest errors of CRAFT and of pinv over the well-posed layers."""
    if row["layers"] is None:
        return None
    posed = [errors for condition, *errors in row["layers"] if condition < WELL_POSED]
    return max(e[0] for e in posed), max((e[1] for e in posed), default=math.nan)


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="One aggregation, milliseconds (and ratios)")
    for title in ("model", "m", "threads", "floor", "CRAFT", "no cert."):
        table.add_column(title, justify="right")
    for title in ("CRAFT/floor", "torchjd/CRAFT", "conflictfree/CRAFT", "pinv/CRAFT"):
        table.add_column(title, justify="right")
    for title in ("error CRAFT", "error pinv", "memory"):
        table.add_column(title, justify="right")
    for row in rows:
        s, errors = row["seconds"], worst(row)
        table.add_row(
            row["model"],
            str(row["clients"]),
            str(row["threads"]),
            *(f"{1e3 * s[name]:.1f}" for name in ("floor", "craft", "craft, no certificate")),
            f"{s['craft'] / s['floor']:.2f}",
            *(_multiple(s, name) for name in ("torchjd", "conflictfree", "pinv")),
            *(["", ""] if errors is None else [f"{e:.1e}" for e in errors]),
            f"{row['memory']:.2f}",
        )
    Console(width=160).print(table)


def _multiple(seconds: dict[str, float], name: str) -> str:
    return f"{seconds[name] / seconds['craft']:.1f}" if name in seconds else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default=os.environ.get("FEDCRAFT_DATA"))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true", help="only the MLP and ResNet-20, m <= 100")
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each case")
    parser.add_argument("--json", type=Path, help="also write the raw seconds here")
    options = parser.parse_args()
    random = [CASES[0], CASES[3]] if options.quick else CASES
    real = workloads(options.data)
    cases = [(name, m, partial(synthetic, name, m)) for name, m in random]
    cases += [(name, m, partial(capture, name, m, options.data)) for name, m in real]
    rows = run(cases, options.threads, options.seconds)
    show(rows)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
