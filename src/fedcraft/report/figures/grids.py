"""Heat maps: learning rates, labels of the clients, cosines by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedcraft.report.extras import needs
from fedcraft.report.figures.style import panel_row, panels
from fedcraft.report.names import OURS
from fedcraft.report.sections.conflicts import cosine_grid
from fedcraft.report.sections.grids import example_labels, label_shares, rate_grid
from fedcraft.runs.select import Entry, Problem
from fedcraft.runs.summary import BASELINE

with needs("pandas"):
    import pandas as pd
with needs("matplotlib"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SEQUENTIAL = "cividis"  # uniform in lightness, readable with any colour vision
_DIVERGING = "PuOr"
_ON_DARK, _ON_LIGHT = "#ffffff", "#111111"  # pure black would turn with the theme, cells do not


def heatmap(problems: Sequence[Problem]) -> Figure | None:
    """Final mean accuracy over client and server learning rates (the paper's Ditto figure)."""
    found = [(p, e, rate_grid(e)) for p in problems for e in p.entries]
    drawn = [(p, e, grid) for p, e, grid in found if grid is not None]
    if not drawn:
        return None
    columns = min(len(drawn), 4)
    figure = panels(columns, -(-len(drawn) // columns), width=2.7)
    bounds = {p.title: _bounds([g for q, _, g in drawn if q is p]) for p, _, _ in drawn}
    for i, (problem, entry, grid) in enumerate(drawn):
        ax = figure.add_subplot(-(-len(drawn) // columns), columns, i + 1)
        _rate_panel(ax, grid, *bounds[problem.title])
        ax.set_title(_title(problem, entry, problems))
        ax.set_xlabel(r"Server rate $\eta_g$", parse_math=True)
        ax.set_ylabel(r"Client rate $\eta_l$" if i % columns == 0 else "", parse_math=True)
    return figure


def data_distribution(problems: Sequence[Problem]) -> Figure | None:
    """Share of each class at example clients, one row per client (Appendix C)."""
    found = [(p, label_shares(p.entries)) for p in problems]
    drawn = [(p, counts) for p, counts in found if counts is not None]
    return panel_row(drawn, _label_panel, width=3.6, height=3.6)


def _label_panel(ax: Axes, part: tuple[Problem, pd.DataFrame]) -> None:
    problem, counts = part
    shares = example_labels(counts.div(counts.sum(axis=1).clip(lower=1), axis=0))
    image = _image(ax, shares, cmap="Blues", vmin=0, vmax=float(shares.to_numpy().max()))
    ax.figure.colorbar(image, ax=ax, label="Share of the client's samples", shrink=0.8)
    some = f"{len(shares)} of {len(counts)} clients"
    ax.set(title=problem.title, xlabel="Class", ylabel=some)


def cosines(problems: Sequence[Problem]) -> Figure | None:
    """Smallest cosine between step and client by layer and round, CRAFT beside FedAvg."""
    entries = [(p, e) for p in problems for e in p.entries if e.name in (BASELINE, OURS)]
    found = [(p, e, cosine_grid(e.runs[0])) for p, e in entries]
    drawn = [(p, e, grid) for p, e, grid in found if grid is not None]
    most = max((float(np.nanmax(np.abs(grid.to_numpy()))) for _, _, grid in drawn), default=0.0)

    def draw(ax: Axes, part: tuple[Problem, Entry, pd.DataFrame]) -> None:
        problem, entry, grid = part
        image = _image(ax, grid, cmap=_DIVERGING, vmin=-most, vmax=most)
        ax.set(title=_title(problem, entry, problems), xlabel="Round")
        if part is drawn[-1]:
            ax.figure.colorbar(image, ax=ax, label="Smallest cosine")

    return panel_row(drawn, draw, width=3.6, height=2.6)


def _title(problem: Problem, entry: Entry, problems: Sequence[Problem]) -> str:
    return entry.label if len(problems) == 1 else f"{problem.title}\n{entry.label}"


def _bounds(grids: Sequence[pd.DataFrame]) -> tuple[float, float]:
    values = np.concatenate([grid.to_numpy().ravel() for grid in grids])
    return float(np.nanmin(values)), float(np.nanmax(values))


def _rate_panel(ax: Axes, grid: pd.DataFrame, low: float, high: float) -> None:
    values = grid.to_numpy()
    _image(ax, grid, cmap=_SEQUENTIAL, vmin=low, vmax=high)
    for (row, column), value in np.ndenumerate(values):
        shade = (value - low) / ((high - low) or 1)
        text = "–" if np.isnan(value) else f"{value:.3f}"
        ax.text(
            column, row, text, ha="center", va="center", fontsize=8.5,
            color="black" if np.isnan(value) else _ON_DARK if shade <= 0.5 else _ON_LIGHT,
        )  # fmt: skip


def _image(ax: Axes, grid: pd.DataFrame, **options: Any) -> Any:
    image = ax.imshow(grid.to_numpy(), aspect="auto", interpolation="nearest", **options)
    ax.set_xticks(*_some(grid.columns, 10), rotation=0)
    ax.set_yticks(*_some(grid.index, 16))
    ax.grid(visible=False)
    return image


def _some(names: pd.Index, most: int) -> tuple[list[int], list[str]]:
    """At most ``most`` tick places with their names."""
    every = -(-len(names) // most)
    places = list(range(0, len(names), every))
    return places, [
        f"{name:g}" if isinstance(name, float) else str(name) for name in names[::every]
    ]
