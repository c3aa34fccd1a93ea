"""Rewrites every generated block and figure: python -m benchmarks.pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.deployment_nodes import deployment_blocks
from benchmarks.pages.craft_auto import craft_auto_blocks
from benchmarks.pages.figures import write_result_figures
from benchmarks.pages.guards import guards_blocks
from benchmarks.pages.markdown import filled
from benchmarks.pages.privacy import privacy_blocks
from benchmarks.pages.results import readme_blocks, results_blocks
from benchmarks.pages.speed import speed_blocks
from benchmarks.pages.theory import theory_blocks, write_theory_figure
from benchmarks.pages.which import which_blocks
from benchmarks.virtual_clock import clock_blocks

__all__ = ["PAGES", "RESULTS", "ROOT", "main"]

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
PAGES: dict[str, Callable[[Path], dict[str, str]]] = {
    "README.md": readme_blocks,
    "docs/craft-auto.md": craft_auto_blocks,
    "docs/deployment.md": deployment_blocks,
    "docs/guards.md": guards_blocks,
    "docs/privacy.md": privacy_blocks,
    "docs/results.md": results_blocks,
    "docs/speed.md": speed_blocks,
    "docs/theory.md": theory_blocks,
    "docs/virtual-clock.md": clock_blocks,
    "docs/which-method.md": which_blocks,
}


def main() -> None:
    """Rewrite the blocks of every page, and the figures."""
    for page, blocks in PAGES.items():
        path = ROOT / page
        path.write_text(filled(path, blocks(RESULTS)), encoding="utf-8")
    figures = ROOT / "docs" / "figures"
    write_result_figures(RESULTS, figures)
    write_theory_figure(RESULTS / "theory", figures / "theory.png")


if __name__ == "__main__":
    main()
