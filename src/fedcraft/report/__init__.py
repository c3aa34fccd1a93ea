"""From run directories to a page, figures and tables."""

from fedcraft.report.figures import write_figures
from fedcraft.report.page import write_page
from fedcraft.report.runs import RunData, load_runs
from fedcraft.report.tables import render, summary

__all__ = ["RunData", "load_runs", "render", "summary", "write_figures", "write_page"]
