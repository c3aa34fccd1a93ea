"""The tables and the figure of docs/theory.md."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.theory_study import EXACT

Record = dict[str, str]
Point = tuple[float, float]
COLOURS = {"agree": "#0072b2", "conflict": "#d55e00"}  # told apart by the colour-blind too
MEANS = {"convergence": "Theorem A.4", "layerwise": "Corollary A.11", "residual": "Corollary A.12"}


def theory_blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks of the page."""
    study = results / "theory"
    return {
        "status": _status(study),
        "looseness": _looseness(study),
        "exact": _exact(study),
        "rates": _rates(study),
        "layers": _layers(study),
    }


def _status(results: Path) -> str:
    status = json.loads((results / "status.json").read_text())
    sweeps = _sweeps(results)
    return (
        f"**{status['instances']} random problems, {status['runs']} runs with "
        f"{status['comparisons']:,} comparisons ({status['nontrivial']:,} of them not trivial: "
        f"left side not 0, right side finite), and {len(sweeps)} runs of the sweeps: "
        f"{broken(results)} bounds broken.**"
    )


def broken(results: Path) -> int:
    """How many comparisons of the study and the sweeps failed."""
    status = json.loads((results / "status.json").read_text())
    return int(status["broken"]) + sum(int(row["broken"]) for row in _sweeps(results))


def _sweeps(results: Path) -> list[Record]:
    return _read(results / "sweep_rounds.csv") + _read(results / "sweep_local_rate.csv")


def _looseness(results: Path) -> str:
    head = (
        "| statement | where | runs | not trivial, of all comparisons | broken | "
        "right / left, median (80 %) | least | informative |"
    )
    lines = [head, "|---|---|--:|--:|--:|--:|--:|--:|"]
    for row in _read(results / "summary.csv"):
        if row["where"].startswith("Assumption A.2"):
            continue  # F >= F* has 0 on its left side
        spread = f"{_inverse(row['ratio_q90'])} to {_inverse(row['ratio_q10'])}"
        lines.append(
            f"| `{row['statement']}` | {row['where']} | {row['runs']} | "
            f"{int(row['nontrivial']):,} of {int(row['places']):,} | {row['broken']} | "
            f"{_inverse(row['ratio_median'])} ({spread}) | {_inverse(row['largest_ratio'])} | "
            f"{_share(row['informative'])} |"
        )
    return "\n".join(lines)


def _share(informative: str) -> str:
    return f"{100 * float(informative):.3g} %" if informative else "-"


def _inverse(ratio: str) -> str:
    value = float(ratio)
    return "∞" if value <= 0 else _plain(1 / value)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _exact(results: Path) -> str:
    runs = _read(results / "runs.csv")
    able = [row for row in runs if row["mode"] in EXACT]
    met = sum(bool(row["convergence"]) for row in able)
    others = sum(bool(row["convergence"]) for row in runs) - met
    return (
        f"Statements that ask for U g = ρ are checked on {met} of the {len(able)} runs that can "
        f"meet the targets (whole, by layer, one-sided) and on {others} others whose steps happen "
        "to reach them."
    )


def _rates(results: Path) -> str:
    rows = _read(results / "sweep_rounds.csv")
    rounds = sorted({int(row["rounds"]) for row in rows})
    head = (
        f"| clients | training | mean ‖∇F‖², T = {rounds[0]} → {rounds[-1]} | slope | "
        "bound | right side | slope | G | slope |"
    )
    lines = [head, "|---|---|--:|--:|---|--:|--:|--:|--:|"]
    for clients in COLOURS:
        for variant in dict.fromkeys(row["variant"] for row in rows):
            chosen = [r for r in rows if r["clients"] == clients and r["variant"] == variant]
            measured, bound, norm = (_trend(chosen, c) for c in ("mean_square", "bound", "G"))
            where = " / ".join(sorted({row["where"] for row in chosen}))
            cells = (clients, variant, measured, where, bound, norm)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _layers(results: Path) -> str:
    met = [row for row in _read(results / "runs.csv") if row["layerwise"]]
    smaller = np.mean([float(row["layer_drift_over_drift"]) < 1 for row in met])
    tighter = np.mean([float(row["convergence"]) > float(row["layerwise"]) for row in met])
    return (
        f"On point 5: in {100 * smaller:.0f} % of the {len(met)} layer-wise runs the drift "
        f"constant by layer is the smaller one; in {100 * tighter:.0f} % theorem A.4 has the "
        "smaller right side."
    )


def _trend(rows: Sequence[Record], column: str) -> str:
    points = _medians(rows, "rounds", column)
    x, y = np.log(np.array(points)).T
    slope = np.polyfit(x, y, 1)[0]
    return f"{_plain(points[0][1])} → {_plain(points[-1][1])} | {slope:+.2f}"


def _medians(rows: Sequence[Record], x: str, y: str) -> list[Point]:
    groups: dict[float, list[float]] = {}
    for row in rows:
        groups.setdefault(float(row[x]), []).append(float(row[y]))
    return [(key, float(np.median(values))) for key, values in sorted(groups.items())]


def write_theory_figure(results: Path, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 8), layout="constrained")
    panels: list[Callable[[Any, Path], None]] = [_all_runs, _over_rounds, _norms, _over_local_rate]
    for axis, draw in zip(axes.flat, panels, strict=True):
        draw(axis, results)
        axis.set(xscale="log", yscale="log")
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _all_runs(axis: Any, results: Path) -> None:
    runs = _read(results / "runs.csv")
    for (name, where), marker in zip(MEANS.items(), "o^s", strict=True):
        chosen = [
            row for row in runs if row.get(name) and (name, row["mode"]) != ("residual", "whole")
        ]
        left = np.array([float(row["mean_square"]) for row in chosen])
        right = left / np.array([float(row[name]) for row in chosen])
        axis.scatter(left, right, s=9, marker=marker, alpha=0.5, linewidths=0, label=where)
    low, high = axis.get_xlim()
    ends = [max(low, 1e-4), high]
    axis.plot(ends, ends, color="black", linewidth=1, label="bound = measurement")
    axis.set(title="Every run", xlabel="measured mean of ‖∇F‖²", ylabel="bound")


def _over_rounds(axis: Any, results: Path) -> None:
    for clients, colour in COLOURS.items():
        rows = _one_step(results, clients)
        for column, style, label in (("bound", "--", "bound"), ("mean_square", "-", "measured")):
            x, y = zip(*_medians(rows, "rounds", column), strict=True)
            axis.plot(x, y, style, color=colour, label=f"{label}, clients {clients}")
    axis.set(title="Rounds, η_g = 1/√T, one local step", xlabel="T", ylabel="mean of ‖∇F‖²")


def _norms(axis: Any, results: Path) -> None:
    for clients, colour in COLOURS.items():
        x, y = zip(*_medians(_one_step(results, clients), "rounds", "G"), strict=True)
        axis.plot(x, y, "-o", markersize=4, color=colour, label=f"clients {clients}")
    axis.set(
        title="G is a constant only if clients agree",
        xlabel="T",
        ylabel="G = largest ‖g_t‖ of the run",
    )


def _one_step(results: Path, clients: str) -> list[Record]:
    rows = _read(results / "sweep_rounds.csv")
    return [row for row in rows if (row["clients"], row["variant"]) == (clients, "one step")]


def _over_local_rate(axis: Any, results: Path) -> None:
    rows = [r for r in _read(results / "sweep_local_rate.csv") if r["clients"] == "conflict"]
    pairs = (
        ("client_drift", "#0072b2", "drift ‖e_i‖"),
        ("lost_descent", "#d55e00", "lost descent"),
    )
    for column, colour, label in pairs:
        for name, style in ((f"{column}_bound", "--"), (column, "-")):
            positive = [point for point in _medians(rows, "eta_l", name) if point[1] > 0]
            x, y = zip(*positive, strict=True)
            kind = "bound" if style == "--" else "measured"
            axis.plot(x, y, style, color=colour, label=f"{label}, {kind}")
    axis.set(title="Local rate, K = 1, 3, 6", xlabel="η_l", ylabel="largest over rounds")


def _read(path: Path) -> list[Record]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
