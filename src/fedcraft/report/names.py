"""How methods are drawn (colour, dash, marker), and what classes and layers are called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedcraft.data.loading import sources
from fedcraft.runs import Run
from fedcraft.runs.select import Entry, in_order
from fedcraft.runs.summary import BASELINE

OURS = "craft"

# Okabe and Ito's palette, whose colours are distinct under common colour vision deficiencies.
# Orange, sky blue and yellow are darkened for thin lines on white. Vermillion is kept for CRAFT,
# grey for the baseline FedAvg.
COLOURS = ("#D55E00", "#5F6670", "#0072B2", "#009E73", "#CC79A7", "#CF8A00", "#3A9FD8", "#948A00")
DARK_COLOURS = (
    *("#FF8A3D", "#A9B1BC", "#4FA6E8", "#2CC99C"),
    *("#EBA3CB", "#F2B83D", "#9BDCFF", "#D9CC3F"),
)
_DASHES = ("solid", "dash", "dot", "dashdot")
_MARKERS = ("circle", "square", "triangle", "diamond", "down", "cross", "plus", "star")
_FREE = tuple(range(2, len(COLOURS)))


@dataclass(frozen=True)
class Style:
    """The style of one method: an index into ``COLOURS``, a dash pattern and a marker."""

    colour: int
    dash: str
    marker: str
    strong: bool = False


def style(entry: Entry) -> Style:
    """The style of a method, the same in all problems."""
    return styles(entry.peers)[entry.name]


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A style for each name; CRAFT and FedAvg always have the same one."""
    ordered = in_order(names)
    others = [name for name in ordered if name not in (OURS, BASELINE)]
    looks = {name: _style(place) for place, name in enumerate(others)}
    looks[OURS] = Style(0, "solid", "circle", strong=True)
    looks[BASELINE] = Style(1, "dash", "square")
    return {name: looks[name] for name in ordered}


def _style(place: int) -> Style:
    dash = _DASHES[(place // len(_FREE)) % len(_DASHES)]
    return Style(_FREE[place % len(_FREE)], dash, _MARKERS[(place + 2) % len(_MARKERS)])


def class_names(run: Run) -> dict[Any, str]:
    """What the labels of a run are called: by its table, or else by the data set's name."""
    known = sources().get(str(run.values.get("dataset")))
    return run.names("classes") or dict(enumerate(known.class_names if known else ()))


def layer_title(layer: object, names: Mapping[Any, str]) -> str:
    """What a layer is called; runs of earlier versions have its path alone."""
    if layer == "all":
        return "whole model"
    text = str(layer)
    return names.get(text, f"layer {text}" if text.isdigit() else text)
