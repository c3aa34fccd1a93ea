"""The style of the paper's figures: serif, light grid, colours that everybody can distinguish."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from fedcraft.report.extras import needs
from fedcraft.report.names import COLOURS, style
from fedcraft.runs.select import Entry, Problem

with needs("matplotlib"):
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Part = TypeVar("Part")

_RC: Any = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e5e8",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "text.parse_math": False,  # a dollar sign in a label is not math
    "pdf.fonttype": 42,  # editable text in PDF
    "svg.fonttype": "none",  # text stays text in SVG
    "svg.hashsalt": "fedcraft",  # the same runs give the same bytes
}
_LEGEND_COLUMN, _LEGEND_ROW = 1.45, 0.18  # inches
_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "down": "v",
    "cross": "x",
    "plus": "+",
    "star": "*",
}


@contextmanager
def paper_style() -> Iterator[None]:
    """Apply the style inside the block; matplotlib's settings are restored after it."""
    with mpl.rc_context(_RC):
        yield


def panels(columns: int, rows: int = 1, width: float = 3.0, height: float = 2.4) -> Figure:
    """An empty figure with room for ``rows`` x ``columns`` panels (sizes in inches)."""
    return Figure(figsize=(width * columns, height * rows), layout="constrained")


def entries_where(
    problems: Sequence[Problem], wanted: Callable[[Entry], bool]
) -> list[tuple[Problem, list[Entry]]]:
    """The entries to draw of each problem that has some."""
    found = [
        (problem, [entry for entry in problem.entries if wanted(entry)]) for problem in problems
    ]
    return [(problem, entries) for problem, entries in found if entries]


def panel_row(
    parts: Sequence[Part],
    draw: Callable[[Axes, Part], None],
    *,
    ylabel: str = "",
    legend: bool = False,
    width: float = 3.0,
    height: float = 2.4,
    projection: str | None = None,
) -> Figure | None:
    """A figure with a panel for each part, made by ``draw``; None if there is nothing to draw."""
    if not parts:
        return None
    figure = panels(len(parts), width=width, height=height)
    axes = []
    for place, part in enumerate(parts, 1):
        axes.append(figure.add_subplot(1, len(parts), place, projection=projection))
        draw(axes[-1], part)
    if ylabel:
        axes[0].set_ylabel(ylabel)
    if legend:
        shared_legend(figure, axes)
    return figure


def colour(entry: Entry) -> str:
    """The colour of a method."""
    return COLOURS[style(entry).colour]


def line(entry: Entry) -> dict[str, Any]:
    """Colour, dash, marker, width and label of a method's line."""
    look = style(entry)
    return {
        "color": COLOURS[look.colour],
        "linestyle": _DASHES[look.dash],
        "marker": _MARKERS[look.marker],
        "markerfacecolor": "white",
        "linewidth": 2.0 if look.strong else 1.3,
        "zorder": 4 if look.strong else 3,
        "label": legend_name(entry),
    }


def legend_name(entry: Entry) -> str:
    """The method in a legend, where matplotlib would leave a name with a leading _ out."""
    return f" {entry.label}" if entry.label.startswith("_") else entry.label


def shared_legend(figure: Figure, axes: list[Axes]) -> None:
    """One legend below all panels, each method once."""
    pairs = [pair for ax in axes for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    unique = {label: handle for handle, label in reversed(pairs)}
    names = list(dict.fromkeys(label for _, label in pairs))
    columns = max(2, min(len(names), int(figure.get_figwidth() / _LEGEND_COLUMN)))
    extra_rows = -(-len(names) // columns) - 1
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW * extra_rows)
    figure.legend([unique[n] for n in names], names, loc="outside lower center", ncols=columns)
