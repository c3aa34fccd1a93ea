"""The sections of the page: each a function from a problem to plain data, ``None`` without any."""

from fedcraft.report.sections.about import configuration, environment, run_list
from fedcraft.report.sections.clients import distribution, radar, spread
from fedcraft.report.sections.conflicts import conflicts
from fedcraft.report.sections.convergence import convergence
from fedcraft.report.sections.gains import gains
from fedcraft.report.sections.grids import labels, learning_rates
from fedcraft.report.sections.one_client import client_view
from fedcraft.report.sections.published import published
from fedcraft.report.sections.suspects import suspects
from fedcraft.report.sections.timing import timing

__all__ = [
    "client_view",
    "configuration",
    "conflicts",
    "convergence",
    "distribution",
    "environment",
    "gains",
    "labels",
    "learning_rates",
    "published",
    "radar",
    "run_list",
    "spread",
    "suspects",
    "timing",
]
