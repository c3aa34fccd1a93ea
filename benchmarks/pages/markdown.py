"""Marked blocks of Markdown pages: ``<!-- name -->`` ... ``<!-- /name -->``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from fedcraft.config.schema import Config

__all__ = ["SCORES", "filled", "rates", "replace_block", "table"]

SCORES = {"mean": "mean", "best10": "best 10 %", "worst10": "worst 10 %", "std": "std"}
"""The columns of the paper's tables, and what ours call them."""


def rates(config: Config) -> str:
    """The pair of rates of a run: client, server."""
    return f"{config.client_lr:g}, {config.server_lr:g}"


def filled(page: Path, blocks: Mapping[str, str]) -> str:
    """Return the page with every block replaced; text outside the marks stays."""
    text = page.read_text(encoding="utf-8")
    for name, block in blocks.items():
        text = replace_block(text, name, block, page.name)
    return text


def replace_block(text: str, name: str, block: str, page: str = "the page") -> str:
    """Put ``block`` between <!-- name --> and <!-- /name -->."""
    start, stop = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(start) != 1 or text.count(stop) != 1:
        raise ValueError(f"{page}: expected one {start} and one {stop}")
    before, _, rest = text.partition(start)
    return before + start + "\n" + block.strip() + "\n" + stop + rest.partition(stop)[2]


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table: the first column to the left, numbers to the right."""
    names = list(heads)
    lines = [names, ["---", *["--:"] * (len(names) - 1)]]
    lines += [[str(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
