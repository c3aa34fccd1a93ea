"""Rows as rich tables: best bold, second best underlined."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedcraft.methods import method_title

__all__ = ["plain_table", "score_table"]

_SCORES = {
    "mean": ("Mean", True, 3),
    "best10": ("Best 10 %", True, 3),
    "worst10": ("Worst 10 %", True, 3),
    "std": ("Std", False, 3),
    "conflicts": ("Conflicts", False, 1),
}
_CONFLICTS = "Conflicts: clients per round the step works against. "
_RATES = "Rates: client_lr / server_lr."
_STYLE: dict[str, Any] = {
    "box": box.SIMPLE_HEAD,
    "title_justify": "left",
    "caption_justify": "left",
    "pad_edge": False,
    "collapse_padding": True,
}
_DIGITS = 5
_PAPER = {"mean_paper": "Paper", "mean_difference": "Off by"}


def score_table(
    rows: Sequence[Mapping[str, Any]], title: str, *, show_rounds: bool = False
) -> Table:
    """Return the paper's table of methods; rounds are shown where they differ, too.

    What has run for fewer rounds than the paper's is beside its numbers, but not measured by them.
    """
    show_rounds = show_rounds or len({row["rounds"] for row in rows}) > 1
    beside = ("mean_paper",) if show_rounds else tuple(_PAPER)
    papers = [key for key in beside if rows and key in rows[0]]
    left_out = "conflicts" if papers else ""  # a terminal is 80 columns wide
    shown = {key: spec for key, spec in _SCORES.items() if rows and key != left_out}
    caption = (_CONFLICTS if "conflicts" in shown else "") + _RATES
    table = Table(title=title, caption=caption, **_STYLE)
    table.add_column("Method", overflow="fold", min_width=10)
    heads = [f"{heading} {'↑' if higher else '↓'}" for heading, higher, _ in shown.values()]
    heads += [_PAPER[key] for key in papers] + (["Rounds"] if show_rounds else [])
    for head in heads:
        # Names and headings are cut into lines before a number loses a digit.
        table.add_column(head, justify="right", min_width=_DIGITS)
    table.add_column("Rates", justify="right", no_wrap=True)
    columns = [_marked(rows, key, *shown[key][1:]) for key in shown]
    for number, row in enumerate(rows):
        cells = [column[number] for column in columns]
        theirs = [_number(row[key], 3, signed=key == "mean_difference") for key in papers]
        rounds = [str(row["rounds"])] if show_rounds else []
        rates = f"{row['client_lr']:g} / {row['server_lr']:g}"
        table.add_row(_name(row), *cells, *theirs, *rounds, rates)
    return table


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """Return a table of text."""
    table = Table(title=title or None, **_STYLE)
    for number, head in enumerate(heads):
        table.add_column(head, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _name(row: Mapping[str, Any]) -> str:
    """The method as the paper writes it; the last numbers of a diverged run are no result."""
    name = method_title(str(row["method"]))
    return f"{name} (diverged)" if row["diverged"] else name


def _marked(rows: Sequence[Mapping[str, Any]], key: str, higher: bool, decimals: int) -> list[Text]:
    """Best bold, second underlined, equal when written equal; what diverged is neither."""
    sound = [row[key] for row in rows if not row["diverged"] and math.isfinite(row[key])]
    order = sorted({_written(value, decimals) for value in sound}, reverse=higher)
    places = dict(zip(order, ("bold", "underline"), strict=False)) if len(order) > 1 else {}
    return [
        Text(
            _number(row[key], decimals),
            "" if row["diverged"] else places.get(_written(row[key], decimals), ""),
        )
        for row in rows
    ]


def _written(value: float, decimals: int) -> float:
    """The value as its digits say: round() goes another way at some ties."""
    return float(f"{value:.{decimals}f}")


def _number(value: float, decimals: int, *, signed: bool = False) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:{'+' if signed else ''}.{decimals}f}"
