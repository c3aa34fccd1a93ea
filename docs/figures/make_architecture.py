"""Draw the picture of docs/architecture.md: ``python docs/figures/make_architecture.py``.

Packages and functions are read from the page.
"""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "architecture.md"
sys.path.insert(0, str(FOLDER))

from drawing import Drawing  # noqa: E402

_TOP, _ROW, _LEFT, _COLUMN = 46.0, 26.0, 258.0, 40.0
_PHASES = {"train": (2, 6), "aggregate": (7, 10), "score": (11, 11), "write": (12, 12)}
_ROW_OF_TABLE = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)
_HOP = re.compile(r"^\d+\. `([\w.]+:[\w.]+)`", re.MULTILINE)
_FUNCTION = re.compile(r"`(fedcraft[\w.]*:[\w.]+)`")


def layers() -> list[tuple[str, ...]]:
    """Return the packages of the table, row by row."""
    rows = _ROW_OF_TABLE.findall(PAGE.read_text(encoding="utf-8"))
    return [tuple(re.findall(r"`([\w.]+)`", row)) for row in rows]


def hops() -> list[str]:
    """Return the functions of the numbered list, as ``package.module:name``."""
    return _HOP.findall(PAGE.read_text(encoding="utf-8"))


def functions() -> list[str]:
    """Return every function and class that the page names."""
    return _FUNCTION.findall(PAGE.read_text(encoding="utf-8"))


def architecture() -> Drawing:
    """Packages from top to bottom, the hops from left to right."""
    rows = layers()
    bottom = _TOP + _ROW * len(rows)
    width = int(_LEFT + _COLUMN * len(hops()) + 20)
    picture = Drawing(width, int(bottom + 34), "The way of an update through the packages")
    picture.text((_LEFT - 12, 26), "packages", "faint", "end", "small")
    for phase, (first, last) in _PHASES.items():
        picture.text(((_x(first) + _x(last)) / 2, 20), phase, "step", kind="small")
        picture.line((_x(first) - 12, 30), (_x(last) + 12, 30), "step", 2)
    for number, row in enumerate(rows):
        _band(picture, number, " | ".join(row), width)
    picture.arrow((18, _TOP + 4), (18, bottom - 4), "faint", 2)
    picture.text((_LEFT - 12, bottom + 22), "imports point down", "faint", "end", "small")
    _path(picture, [_height(hop, rows) for hop in hops()])
    return picture


def _x(number: int) -> float:
    return _LEFT + _COLUMN * (number - 0.5)


def _band(picture: Drawing, number: int, words: str, width: int) -> None:
    top = _TOP + _ROW * number
    if number % 2 == 0:
        picture.box((30, top), (width - 40, _ROW), "wash", "", 3)
    picture.text((_LEFT - 12, top + 18), words, anchor="end", kind="small")


def _height(hop: str, rows: list[tuple[str, ...]]) -> float:
    package = hop.split(".")[1]
    number = next(number for number, row in enumerate(rows) if package in row)
    return _TOP + _ROW * (number + 0.5)


def _path(picture: Drawing, heights: list[float]) -> None:
    places = [(_x(number), height) for number, height in enumerate(heights, 1)]
    for start, stop in pairwise(places):
        picture.line(start, stop, "first", 2)
    for number, (x, y) in enumerate(places, 1):
        picture.dot((x, y), "first", 11)
        picture.text((x, y + 4.5), str(number), "paper", kind="small strong")


PICTURES = {"architecture": architecture}


def main() -> None:
    """Write the picture beside this script."""
    (FOLDER / "architecture.svg").write_text(architecture().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
