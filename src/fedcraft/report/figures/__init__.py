"""The paper's figures from run directories, as PNG, PDF and SVG."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fedcraft.errors import InputError
from fedcraft.report.extras import needs
from fedcraft.report.figures import clients, grids, lines
from fedcraft.report.figures.dark import with_dark_theme
from fedcraft.report.figures.style import paper_style
from fedcraft.runs import Run
from fedcraft.runs.select import group

with needs("matplotlib"):
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "write_figures"]

FIGURES = {
    "convergence": lines.convergence,
    "distribution": clients.distribution,
    "distribution-all": clients.all_distributions,
    "radar": clients.radar,
    "std": clients.spread,
    "heatmap": grids.heatmap,
    "data-distribution": grids.data_distribution,
    "seeds": lines.seeds,
    "history": lines.history,
    "gains": clients.gains,
    "conflicts": lines.conflicts,
    "cosines": grids.cosines,
}
_FORMATS = ("png", "pdf", "svg")
_DPI = 200


def write_figures(
    runs: Iterable[Run],
    folder: str | os.PathLike[str],
    formats: Iterable[str] = _FORMATS,
) -> list[Path]:
    """Write every figure the runs have data for, in each format, and return the files.

    A figure without data (no grid of learning rates, one seed only, ...) is left out.
    """
    wanted = list(formats)
    unknown = [name for name in wanted if name not in _FORMATS]
    if unknown:
        raise InputError(
            f"formats should be among {', '.join(_FORMATS)}, but holds {unknown[0]!r}."
        )
    problems = group(runs)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with paper_style():
        for name, draw in FIGURES.items():
            figure = draw(problems)
            if figure is not None:
                written += [_save(figure, target / f"{name}.{kind}", kind) for kind in wanted]
    return written


def _save(figure: Figure, path: Path, kind: str) -> Path:
    figure.savefig(path, dpi=_DPI, metadata=_undated(kind))
    if kind == "svg":
        path.write_text(with_dark_theme(path.read_text(encoding="utf-8")), encoding="utf-8")
    figure.set_layout_engine("none")  # the other formats keep the layout of the first one
    return path


def _undated(kind: str) -> dict[str, None]:
    """No dates in the files: unchanged runs give unchanged bytes."""
    return {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
