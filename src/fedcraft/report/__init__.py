"""The report: a page, figures and tables from runs."""

import importlib
from typing import TYPE_CHECKING, Any

from fedcraft.report.render import render, summary
from fedcraft.runs import find_runs as load_runs

if TYPE_CHECKING:
    from fedcraft.report.figures import write_figures
    from fedcraft.report.page import write_page

__all__ = ["load_runs", "render", "summary", "write_figures", "write_page"]

# Loaded when first used: Markdown, LaTeX and CSV need none of the packages of page and figures.
_LAZY = {"write_figures": "figures", "write_page": "page"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"fedcraft.report.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
