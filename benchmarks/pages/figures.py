"""The figures of docs/results.md and docs/virtual-clock.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.virtual_clock import CASES, accuracy_at, shown
from fedcraft.methods import method_title
from fedcraft.report.figures.dark import with_dark_theme
from fedcraft.report.figures.grids import heatmap
from fedcraft.report.figures.lines import convergence
from fedcraft.report.figures.style import colour, panels, paper_style, shared_legend
from fedcraft.report.names import COLOURS, OURS
from fedcraft.runs import Run
from fedcraft.runs.select import Entry, Problem, group
from fedcraft.studies.reproduce import from_results

__all__ = ["write_result_figures"]


CURVES = {
    "femnist": "table-femnist",
    "cifar10-cnn": "curves-cifar10-cnn",
    "cifar100-cnn": "curves-cifar100-cnn",
    "cifar10-resnet20": "curves-cifar10-resnet20",
}


def write_result_figures(results: Path, folder: Path) -> None:
    """Draw what the pages show of the studies that are stored.

    The same results give the same bytes.
    """
    with paper_style():
        for name, study in CURVES.items():
            curves = convergence(_problems(study, results))
            if curves is not None:
                _save(curves, folder / f"{name}-curves.svg")
        rates = heatmap(_problems("ditto-cifar10-short", results, curves=False))
        if rates is not None:
            _save(rates, folder / "ditto-rates.svg")
        for problem in _problems("table-femnist", results)[:1]:
            _save(spread_of_clients(problem.entries), folder / "femnist-clients.svg")
        clock = results / "benchmarks" / "virtual-clock.json"
        if clock.is_file():
            drawn = over_virtual_time(json.loads(clock.read_text(encoding="utf-8")))
            _save(drawn, folder / "virtual-clock.svg")


def _problems(study: str, results: Path, *, curves: bool = True) -> list[Problem]:
    """Return what a study is about; ``curves`` leaves out runs that are kept without theirs."""
    if not (results / study).is_dir():
        return []
    runs = from_results(study, results).result.runs
    return group(run for run in runs if _has_curve(run) or not curves)


def spread_of_clients(entries: tuple[Entry, ...]) -> Figure:
    """A line a method from its worst tenth of clients over the mean to the best tenth."""
    ordered = sorted(entries, key=lambda entry: entry.chosen.final("mean"))
    figure = panels(1, width=5.6, height=0.9 + 0.22 * len(ordered))
    ax = figure.add_subplot()
    for place, entry in enumerate(ordered):
        worst, mean, best = (entry.chosen.final(key) for key in ("worst10", "mean", "best10"))
        shade, width = colour(entry), 2.6 if entry.name == OURS else 1.4
        ax.plot([worst, best], [place, place], color=shade, linewidth=width, zorder=2)
        ax.plot([worst, best], [place, place], "|", color=shade, markersize=8, zorder=3)
        ax.plot(mean, place, "o", color=shade, markersize=6, zorder=3)
    ax.set_yticks(range(len(ordered)), [entry.label for entry in ordered])
    ax.set_xlabel("Test accuracy: worst 10 % of clients, mean (dot), best 10 %")
    ax.grid(axis="y", visible=False)
    return figure


def over_virtual_time(result: dict[str, Any]) -> Figure:
    """Mean accuracy by virtual time; synchronous rounds dashed, buffers solid."""
    figure = panels(1, width=5.6, height=3.0)
    ax = figure.add_subplot()
    shades = {"fedavg": COLOURS[1], "fedbuff": COLOURS[1], OURS: COLOURS[0]}
    for case in CASES:
        runs = shown(result, case)
        first = max(run["curve"][0][0] for run in runs)
        times = np.linspace(first, result["until"], 12)
        means = [np.mean([accuracy_at(run["curve"], t) for run in runs]) for t in times]
        dash = "-" if case.mode == "buffered" else "--"
        shade, label = shades.get(case.method, COLOURS[2]), method_title(case.method)
        ax.plot(times, means, dash, color=shade, label=f"{label}, {case.mode}")
    ax.set(xlabel="Virtual time", ylabel="Mean test accuracy")
    shared_legend(figure, [ax])
    return figure


def _has_curve(run: Run) -> bool:
    return run.source.table("clients") is not None


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    path.write_text(with_dark_theme(path.read_text(encoding="utf-8")), encoding="utf-8")
