"""Rows as rich tables: best bold, second best underlined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedcraft.runs.summary import METRICS, marks, note

__all__ = ["plain_table", "score_table"]

_CONFLICTS = "Conflicts: clients per round that the step works against."
_RATES = "Rates: client_lr / server_lr."
_STYLE: dict[str, Any] = {
    "box": box.SIMPLE_HEAD,
    "title_justify": "left",
    "caption_justify": "left",
    "pad_edge": False,
    "collapse_padding": True,
}
_DIGITS = 5
_PLACES = ("", "bold", "underline")
_PAPER = {"mean_paper": "Paper", "mean_difference": "Off by"}


def score_table(
    rows: Sequence[Mapping[str, Any]], title: str, *, show_rounds: bool = False
) -> Table:
    """Return the table of one problem's methods; rounds are shown where they differ.

    Runs with fewer rounds than the paper's are shown beside its numbers, but without a difference.
    """
    show_rounds = show_rounds or len({row["rounds"] for row in rows}) > 1
    beside = ("mean_paper",) if show_rounds else tuple(_PAPER)
    papers = [key for key in beside if rows and key in rows[0]]
    left_out = "conflicts" if papers else ""  # a terminal is 80 columns wide
    shown = [metric for metric in METRICS if metric.key != left_out]
    caption = [_CONFLICTS if not left_out else "", _RATES, note(rows)]
    table = Table(title=title, caption=" ".join(filter(None, caption)), **_STYLE)
    table.add_column("Method", overflow="fold", min_width=10)
    heads = [f"{metric.heading} {'↑' if metric.higher_is_better else '↓'}" for metric in shown]
    heads += [_PAPER[key] for key in papers] + (["Rounds"] if show_rounds else [])
    for head in heads:
        # Names and headings are wrapped before a number loses a digit.
        table.add_column(head, justify="right", min_width=_DIGITS)
    table.add_column("Rates", justify="right", no_wrap=True)
    places = {metric.key: marks(rows, metric) for metric in shown}
    for number, row in enumerate(rows):
        cells = [Text(m.text(row[m.key]), _PLACES[places[m.key][number]]) for m in shown]
        theirs = [_beside(row, key) for key in papers]
        rounds = [str(row["rounds"])] if show_rounds else []
        rates = f"{row['client_lr']:g} / {row['server_lr']:g}"
        name = f"{row['label']} (diverged)" if row["diverged"] else str(row["label"])
        table.add_row(name, *cells, *theirs, *rounds, rates)
    return table


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """Return a table of text."""
    table = Table(title=title or None, **_STYLE)
    for number, head in enumerate(heads):
        table.add_column(head, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _beside(row: Mapping[str, Any], key: str) -> str:
    text = METRICS[0].text(row[key])
    return f"+{text}" if key == "mean_difference" and row[key] >= 0 else text
