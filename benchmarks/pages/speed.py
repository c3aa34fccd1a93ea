"""Tables of docs/speed.md from the files of results/benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isnan, nan
from pathlib import Path
from typing import Any

from benchmarks.aggregation import worst
from benchmarks.pages.markdown import table

__all__ = ["speed_blocks", "speed_summary"]

Row = dict[str, Any]
_FLOWER = "Flower simulation"
_WORKLOADS = {"femnist": "FEMNIST & MLP", "cifar10": "CIFAR-10 & CNN"}


def speed_blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks of the page by name."""
    folder = results / "benchmarks"
    simulations = [_read(folder / f"simulation-{name}.json") for name in _WORKLOADS]
    return {
        "aggregation": _aggregation(_read(folder / "aggregation.json")),
        "steps": _steps(_read(folder / "steps.json")),
        "methods": _methods(_read(folder / "methods.json")),
        **{name: _simulation(rows) for name, rows in zip(_WORKLOADS, simulations, strict=True)},
        "scale": _scale(_read(folder / "simulation-scale.json")),
        "deployment": _deployment(_read(folder / "deployment.json")),
        "deployment link": _deployment(_read(folder / "deployment-link.json")),
    }


def speed_summary(results: Path) -> str:
    """Return the README's few lines."""
    folder = results / "benchmarks"
    rows = _read(folder / "aggregation.json")
    floors = [row["seconds"]["craft"] / row["seconds"]["floor"] for row in rows]
    times = [row["seconds"] for row in rows if "pinv" in row["seconds"]]
    formula = [seconds["pinv"] / seconds["craft"] for seconds in times]
    lines = [
        f"One aggregation costs {min(floors):.1f} to {max(floors):.1f} times the floor (one Gram "
        f"product and one weighted sum), and the formula as written {min(formula):.0f} to "
        f"{max(formula):.0f} times as much."
    ]
    for name, title in _WORKLOADS.items():
        paces = {r["name"]: r for r in _read(folder / f"simulation-{name}.json")}
        ours = paces["fedcraft processes 2"]
        rivals = {rival: paces[rival]["x_floor"] for rival in ("pfl, 2 processes", _FLOWER)}
        told = ", ".join(f"{rival} {x:.2f}" for rival, x in rivals.items())
        lines.append(
            f"A simulated round of FedAvg on {title} takes {ours['seconds_per_round']:.3f} s: "
            f"{ours['x_floor']:.2f} times a hand-written PyTorch loop over two processes ({told})."
        )
    return "\n".join(f"* {line}" for line in lines)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _aggregation(rows: list[Row]) -> str:
    heads = ("model, clients", "threads", "CRAFT, ms", "x floor", "certificate")
    rivals = ("torchjd", "conflictfree", "pinv")
    errors = ("error of CRAFT", "error of pinv")
    return table(
        (*heads, *(f"{name} / CRAFT" for name in rivals), *errors),
        (_aggregation_row(row, rivals) for row in rows),
    )


def _aggregation_row(row: Row, rivals: tuple[str, ...]) -> Iterator[str]:
    seconds = row["seconds"]
    craft, bare = seconds["craft"], seconds["craft, no certificate"]
    yield f"{row['model']}, {row['clients']}"
    yield str(row["threads"])
    yield f"{1e3 * craft:.1f}"
    yield f"{craft / seconds['floor']:.2f}"
    yield f"{100 * (craft / bare - 1):+.0f} %"
    yield from (f"{seconds[name] / craft:.1f}" if name in seconds else "" for name in rivals)
    errors = worst(row) if "layers" in row else row["errors"]  # files of the first version
    yield from ("" if isnan(error) else f"{error:.0e}" for error in errors or (nan, nan))


def _steps(rows: list[Row]) -> str:
    heads = ("network", "eager, ms", "fedcraft, ms", "x eager", "bfloat16, x eager", "its error")
    return table((*heads, "page faults, eager", "fedcraft"), map(_step_row, rows))


def _step_row(row: Row) -> Iterator[str]:
    kinds = ("eager", "fedcraft")
    yield row["network"]
    yield from (f"{1e3 * row['seconds'][kind]:.0f}" for kind in kinds)
    yield from (f"{row['ratio'][kind]:.2f}" for kind in ("fedcraft", "bfloat16"))
    yield f"{row['update_error']:.2f}"
    yield from (f"{row['faults'][kind]:.0f}" for kind in kinds)


def _methods(cases: dict[str, dict[str, dict[str, float]]]) -> str:
    names = list(next(iter(cases.values())))
    rows = ([name, *(f"{_certified(case[name]):.1f}" for case in cases.values())] for name in names)
    return table(("methods", *cases), rows)


def _certified(seconds: dict[str, float]) -> float:
    (base,) = (value for name, value in seconds.items() if name not in ("certified", "bare"))
    return seconds["certified"] / base


def _simulation(rows: list[Row]) -> str:
    heads = ("", "s a round", "x floor", "evaluation, s", "x floor", "start-up, s", "MB")
    return table(
        heads,
        (
            (
                row["name"],
                f"{row['seconds_per_round']:.3f}",
                f"{row['x_floor']:.2f}",
                f"{row['evaluate_seconds']:.2f}",
                f"{row['evaluate_x_floor']:.2f}",
                f"{row['start_up_seconds']:.1f}",
                f"{row['memory_mb']:.0f}",
            )
            for row in rows
            if not row.get("missing")
        ),
    )


def _scale(rows: list[Row]) -> str:
    return table(
        ("", "s a round", "x 1,000 clients", "MB"),
        (
            (
                row["name"],
                f"{row['seconds_per_round']:.3f}",
                f"{row['x_1000_clients']:.2f}",
                f"{row['memory_mb']:.0f}",
            )
            for row in rows
        ),
    )


def _deployment(rows: list[Row]) -> str:
    base = {
        (row["model"], row["clients"]): row for row in rows if row["strategy"] == "Flower's FedAvg"
    }
    heads = ("parameters, clients, strategy", "round, s", "x FedAvg", "CPU, s", "x FedAvg", "MB")
    return table(heads, (_round_row(row, base[row["model"], row["clients"]]) for row in rows))


def _round_row(row: Row, base: Row) -> Iterator[str]:
    yield f"{row['model']}, {row['clients']}, {row['strategy']}"
    for key in ("round_seconds", "cpu_seconds"):
        yield f"{row[key]:.2f}"
        yield f"{row[key] / base[key]:.2f}"
    yield f"{row['memory_mb']:.0f}"
