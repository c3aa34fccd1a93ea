"""Rows as rich tables: best bold, second best underlined."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from fedcraft.methods import methods

__all__ = ["plain_table", "score_table"]

_SCORES = {
    "mean": ("Mean", True, 3),
    "best10": ("Best 10 %", True, 3),
    "worst10": ("Worst 10 %", True, 3),
    "std": ("Std", False, 3),
    "conflicts": ("Conflicts", False, 1),
}
_CAPTION = "Conflicts: clients per round the step works against. Rates: client_lr / server_lr."
_STYLE: dict[str, Any] = {
    "box": box.SIMPLE_HEAD,
    "title_justify": "left",
    "caption_justify": "left",
    "pad_edge": False,
    "collapse_padding": True,
}
_PAPER = {"mean_paper": "Paper", "mean_difference": "Off by"}


def score_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return the paper's table of methods."""
    titles = {row.name: row.title for row in methods()}
    papers = [key for key in _PAPER if rows and key in rows[0]]
    left_out = "conflicts" if papers else ""  # a terminal is 80 columns wide
    shown = {key: spec for key, spec in _SCORES.items() if rows and key != left_out}
    table = Table(title=title, caption=_CAPTION, **_STYLE)
    table.add_column("Method", no_wrap=True)
    for heading, higher, _ in shown.values():
        table.add_column(f"{heading} {'↑' if higher else '↓'}", justify="right")
    for key in papers:
        table.add_column(_PAPER[key], justify="right")
    table.add_column("Rates", justify="right", no_wrap=True)
    columns = [_marked([row[key] for row in rows], *shown[key][1:]) for key in shown]
    for number, row in enumerate(rows):
        cells = [column[number] for column in columns]
        beside = [_number(row[key], 3, signed=key == "mean_difference") for key in papers]
        rates = f"{row['client_lr']:g} / {row['server_lr']:g}"
        table.add_row(titles.get(row["method"], row["method"]), *cells, *beside, rates)
    return table


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """Return a table of text."""
    table = Table(title=title or None, **_STYLE)
    for number, head in enumerate(heads):
        table.add_column(head, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _marked(values: Sequence[float], higher: bool, decimals: int) -> list[str]:
    """Best bold, second underlined, equal when written equal."""
    written = [_number(value, decimals) for value in values]
    finite = {round(value, decimals) for value in values if math.isfinite(value)}
    order = [_number(value, decimals) for value in sorted(finite, reverse=higher)]
    if len(order) < 2:
        return written
    styles = {order[0]: "bold", order[1]: "underline"}
    return [f"[{styles[text]}]{text}[/]" if text in styles else text for text in written]


def _number(value: float, decimals: int, *, signed: bool = False) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:{'+' if signed else ''}.{decimals}f}"
