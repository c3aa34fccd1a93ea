"""Figures about clients: distributions, radar, spread, gains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedcraft.report.extras import needs
from fedcraft.report.figures.style import (
    colour,
    entries_where,
    legend_name,
    panel_row,
    panels,
)
from fedcraft.report.names import COLOURS, OURS
from fedcraft.report.sections.clients import accuracies
from fedcraft.report.sections.gains import client_gains
from fedcraft.runs.select import Entry, Problem
from fedcraft.runs.summary import BASELINE

with needs("matplotlib"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.projections.polar import PolarAxes
    from matplotlib.ticker import MaxNLocator

Spokes = list[tuple[str, list[float]]]
"""The numbers of each method, by its name."""

_BINS = [i / 20 for i in range(21)]


def distribution(problems: Sequence[Problem]) -> Figure | None:
    """Final accuracy of all clients under FedAvg and CRAFT, one panel per problem."""

    def draw(ax: Axes, part: tuple[Problem, list[Entry]]) -> None:
        problem, entries = part
        _histograms(ax, entries)
        ax.set(title=problem.title, xlabel="Test accuracy")

    drawn = entries_where(problems, lambda e: e.name in (BASELINE, OURS) and len(accuracies(e)) > 0)
    return panel_row(drawn, draw, ylabel="Clients", legend=True)


def all_distributions(problems: Sequence[Problem]) -> Figure | None:
    """Every rival against CRAFT: one row per rival, one column per problem (Appendix D)."""
    methods = {e.name: None for p in problems for e in p.entries if len(accuracies(e))}
    rivals = [method for method in methods if method != OURS]
    if len(rivals) == len(methods) or not rivals:
        return None
    figure = panels(len(problems), len(rivals), height=1.25)
    cells = [(row, column) for row in range(len(rivals)) for column in range(len(problems))]
    for row, column in cells:
        rival, craft = (problems[column].entry(name) for name in (rivals[row], OURS))
        if rival is None:
            continue
        ax = figure.add_subplot(len(rivals), len(problems), row * len(problems) + column + 1)
        _rival_panel(ax, [entry for entry in (rival, craft) if entry])
        ax.set_title(problems[column].title if row == 0 else "")
        ax.set_xlabel("Test accuracy" if row == len(rivals) - 1 else "")
        ax.set_ylabel("Clients" if column == 0 else "")
    return figure


def radar(problems: Sequence[Problem]) -> Figure | None:
    """One spoke per method; best 10 %, mean and worst 10 % as closed curves, outer is better."""
    drawn = [(p, spokes) for p in problems if len(spokes := _spokes(p)) >= 3]
    return panel_row(drawn, _radar_panel, legend=True, width=4.0, height=3.4, projection="polar")


def spread(problems: Sequence[Problem]) -> Figure | None:
    """Standard deviation of client accuracy, one bar per method; lower is fairer."""
    drawn = entries_where(problems, lambda entry: math.isfinite(entry.chosen.final("std")))
    if not drawn:
        return None
    bars = [len(entries) for _, entries in drawn]
    figure = panels(1, width=max(2.4, 0.34 * sum(bars) + 0.8 * len(bars)), height=2.6)
    grid = figure.add_gridspec(1, len(drawn), width_ratios=bars)
    for i, (problem, entries) in enumerate(drawn):
        ax = figure.add_subplot(grid[0, i])
        _spread_panel(ax, entries)
        ax.set(title=problem.title, ylabel="Std of client accuracy" if i == 0 else "")
    return figure


def gains(problems: Sequence[Problem]) -> Figure | None:
    """CRAFT minus FedAvg for every client, sorted; only over the same split."""
    pairs = [(p, p.entry(OURS), p.entry(BASELINE)) for p in problems]
    tables = [(p, client_gains(ours, theirs)) for p, ours, theirs in pairs if ours and theirs]
    drawn = [(p, t["gain"].to_numpy(dtype=float), t["seed"].nunique()) for p, t in tables if len(t)]
    return panel_row(drawn, _gain_panel, ylabel="Accuracy, CRAFT − FedAvg")


def _gain_panel(ax: Axes, part: tuple[Problem, np.ndarray, int]) -> None:
    problem, values, seeds = part
    ax.stairs(values.clip(min=0), fill=True, color=COLOURS[2])
    ax.stairs(values.clip(max=0), fill=True, color=COLOURS[0])
    ax.axhline(0, color="black", linewidth=0.8)
    won, lost = int((values > 0).sum()), int((values < 0).sum())
    pooled = f"Clients of {seeds} seeds" if seeds > 1 else "Clients"
    ax.set(title=problem.title, xlabel=f"{pooled}, sorted ({won} gain, {lost} lose)")


def _histograms(ax: Axes, entries: Sequence[Entry]) -> None:
    for entry in entries:
        values = accuracies(entry)
        # Several seeds: clients per seed, so that methods with more seeds do not look taller.
        look: Any = {"weights": np.full(len(values), 1 / len(entry.runs)), "color": colour(entry)}
        ax.hist(values, _BINS, alpha=0.35, label=legend_name(entry), **look)
        ax.hist(values, _BINS, histtype="step", linewidth=1.2, **look)
    ax.set_xlim(0, 1)


def _rival_panel(ax: Axes, entries: Sequence[Entry]) -> None:
    _histograms(ax, [entry for entry in entries if len(accuracies(entry))])
    ax.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    ax.legend(loc="upper left", fontsize=7.5, handlelength=1.2, borderaxespad=0.1)


def _spokes(problem: Problem) -> Spokes:
    names = ("best10", "mean", "worst10")
    found = [(e.label, [e.chosen.final(name) for name in names]) for e in problem.entries]
    return [(label, values) for label, values in found if all(map(math.isfinite, values))]


def _radar_panel(ax: Axes, part: tuple[Problem, Spokes]) -> None:
    problem, spokes = part
    if not isinstance(ax, PolarAxes):
        raise TypeError(f"ax should be polar, but is {type(ax).__name__}.")
    angles = np.linspace(0, 2 * np.pi, len(spokes), endpoint=False)
    closed = np.append(angles, angles[0])
    looks = (("Best 10 %", 3, ":", "^"), ("Mean", 2, "-", "o"), ("Worst 10 %", 0, "--", "s"))
    for k, (name, shade, dash, mark) in enumerate(looks):
        values = [value[k] for _, value in spokes]
        ax.plot(
            closed,
            [*values, values[0]],
            dash,
            marker=mark,
            markerfacecolor="white",
            color=COLOURS[shade],
            label=name,
        )
    ax.set_theta_zero_location("N")
    ax.set_theta_direction(-1)
    top = 1.04 * max(value[0] for _, value in spokes)
    ax.set_xticks(angles, [])
    for angle, (label, _) in zip(angles, spokes, strict=True):
        side = np.sin(angle)
        place = "center" if abs(side) < 0.1 else "left" if side > 0 else "right"
        ax.text(float(angle), top * 1.1, label, ha=place, va="center", fontsize=9)
    ax.set_rlabel_position(180 / len(spokes))
    ax.set_ylim(0, top)
    ax.spines["polar"].set_visible(False)
    ax.yaxis.set_major_locator(MaxNLocator(4))
    ax.tick_params(axis="y", labelsize=7.5, labelcolor="#555555")
    ax.set_title(problem.title, pad=18)


def _spread_panel(ax: Axes, entries: Sequence[Entry]) -> None:
    values = [entry.chosen.final("std") for entry in entries]
    errors = [np.nan_to_num(entry.chosen.spread("std")) for entry in entries]
    places = np.arange(len(entries))
    ax.bar(places, values, 0.7, color=[colour(entry) for entry in entries])
    if any(errors):
        ax.errorbar(places, values, errors, fmt="none", ecolor="black", capsize=2.5, linewidth=1)
    ax.set_xticks(places, [entry.label for entry in entries], rotation=45, ha="right")
    ax.grid(axis="x", visible=False)
