"""Curves along the rounds: convergence, seeds with error bars, history, conflicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedcraft.report.extras import needs
from fedcraft.report.figures.style import entries_where, line, panel_row
from fedcraft.report.names import COLOURS, OURS
from fedcraft.report.sections.conflicts import STAGES, smooth_conflicts
from fedcraft.report.series import curve, thin
from fedcraft.runs.select import Entry, Problem

with needs("matplotlib"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS = 8
_ERROR_BARS = 12


def convergence(problems: Sequence[Problem]) -> Figure | None:
    """Mean test accuracy by round, one panel per problem (the paper's convergence figure)."""
    return _curves(problems, lambda entry: True, _draw_curve)


def seeds(problems: Sequence[Problem]) -> Figure | None:
    """The same for methods with several seeds; bars are one standard deviation over seeds."""
    return _curves(problems, lambda entry: len(entry.chosen.seeds) > 1, _draw_error_bars)


def history(problems: Sequence[Problem]) -> Figure | None:
    """CRAFT beside history-based FedLF (Appendix D); only where such a method was run."""
    with_history = [p for p in problems if any("history" in e.name for e in p.entries)]
    return _curves(with_history, _is_history_rival, _draw_curve)


def conflicts(problems: Sequence[Problem]) -> Figure | None:
    """Clients in conflict per round for CRAFT (or the first method): before and after."""
    entries = [(p, p.entry(OURS) or p.entries[0]) for p in problems]
    counted = [(p, e) for p, e in entries if not smooth_conflicts(e.runs[0]).empty]
    return panel_row(counted, _conflict_panel, ylabel="Clients in conflict", legend=True)


def _is_history_rival(entry: Entry) -> bool:
    return entry.name in (OURS, "fedlf") or "history" in entry.name


def _curves(
    problems: Sequence[Problem],
    wanted: Callable[[Entry], bool],
    draw: Callable[[Axes, Entry], None],
) -> Figure | None:
    def draw_all(ax: Axes, part: tuple[Problem, list[Entry]]) -> None:
        problem, entries = part
        for entry in entries:
            draw(ax, entry)
        ax.set(title=problem.title, xlabel="Round")

    drawn = entries_where(
        problems, lambda entry: wanted(entry) and bool(entry.chosen.shared("mean"))
    )
    return panel_row(drawn, draw_all, ylabel="Mean test accuracy", legend=True)


def _draw_curve(ax: Axes, entry: Entry) -> None:
    points = thin(curve(entry.chosen, "mean"))
    every = max(1, len(points) // _MARKS)
    ax.plot(points.index, points["mean"], markevery=every, **line(entry))


def _draw_error_bars(ax: Axes, entry: Entry) -> None:
    points = thin(curve(entry.chosen, "mean"), _ERROR_BARS)
    ax.errorbar(points.index, points["mean"], points["sd"], capsize=2.5, **line(entry))


def _conflict_panel(ax: Axes, part: tuple[Problem, Entry]) -> None:
    problem, entry = part
    counts = smooth_conflicts(entry.runs[0])
    looks = {
        "average": (COLOURS[1], "--"),
        "reference": (COLOURS[5], ":"),
        "after": (COLOURS[2], "-"),
    }
    for stage in counts.columns:
        colour, dash = looks[stage]
        ax.plot(counts.index, counts[stage], color=colour, linestyle=dash, label=STAGES[stage])
    ax.set(title=f"{problem.title}, {entry.label}", xlabel="Round", ylim=(0, None))
