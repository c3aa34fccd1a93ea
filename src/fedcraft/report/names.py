"""How methods are written and drawn: the paper's spelling, one colour, dash and marker each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["COLOURS", "DARK_COLOURS", "Style", "display_name", "in_paper_order", "problem_name", "styles"]

_PAPER_NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fednova": "FedNova",
    "fedavgm": "FedAvgM",
    "fedadagrad": "FedAdaGrad",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "afl": "AFL",
    "fedfv": "FedFV",
    "fedmgda+": "FedMGDA+",
    "fedmgda": "FedMGDA+",
    "qfedavg": "qFedAvg",
    "q-fedavg": "qFedAvg",
    "fedlf": "FedLF",
    "fedlf-history": "FedLF (history)",
    "config": "ConFIG",
    "ditto": "Ditto",
    "ditto-craft": "Ditto + CRAFT",
    "per-fedavg": "Per-FedAvg",
    "perfedavg": "Per-FedAvg",
    "fedrep": "FedRep",
    "craft": "CRAFT",
}

_PAPER_PROBLEMS = {
    "femnist": "FEMNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "digits": "Digits",
    "mlp": "MLP",
    "cnn": "CNN",
    "resnet20": "ResNet-20",
    "resnet56": "ResNet-56",
    "resnet110": "ResNet-110",
}

# Okabe and Ito's palette, which the common colour vision deficiencies keep apart. Orange, sky blue
# and yellow are darkened until a thin line of them is seen on white. Vermillion is kept for CRAFT,
# grey for the baseline FedAvg.
COLOURS = ("#D55E00", "#5F6670", "#0072B2", "#009E73", "#CC79A7", "#CF8A00", "#3A9FD8", "#948A00")
DARK_COLOURS = (
    "#FF8A3D",
    "#A9B1BC",
    "#4FA6E8",
    "#2CC99C",
    "#EBA3CB",
    "#F2B83D",
    "#9BDCFF",
    "#D9CC3F",
)
_DASHES = ("solid", "dash", "dot", "dashdot")
_MARKERS = ("circle", "square", "triangle", "diamond", "down", "cross", "plus", "star")
_CRAFT, _FEDAVG = 0, 1
_FREE = tuple(range(2, len(COLOURS)))


@dataclass(frozen=True)
class Style:
    """One method's look: an index into ``COLOURS``, a dash pattern and a marker."""

    colour: int
    dash: str
    marker: str
    strong: bool


def display_name(method: str) -> str:
    """The paper's spelling of a method; names it does not know stay as they are."""
    return _PAPER_NAMES.get(method.lower().replace("_", "-"), method)


def problem_name(part: object) -> str:
    """The paper's spelling of a data set or a model."""
    text = str(part)
    return _PAPER_PROBLEMS.get(text.lower().replace("-", "").replace("_", ""), text)


def in_paper_order(methods: Iterable[str]) -> list[str]:
    """The methods in the order of the paper's Table 1 (CRAFT last), unknown ones before CRAFT."""
    known = list(_PAPER_NAMES)

    def rank(method: str) -> tuple[int, str]:
        key = method.lower().replace("_", "-")
        if key == "craft":
            return len(known) + 1, key
        return (known.index(key) if key in known else len(known)), key

    return sorted(set(methods), key=rank)


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """A look for each method; CRAFT and FedAvg always have the same one."""
    ordered = in_paper_order(methods)
    others = [m for m in ordered if m.lower() not in ("craft", "fedavg")]
    looks = {m: _style(_FREE[i % len(_FREE)], i) for i, m in enumerate(others)}
    for method in ordered:
        if method.lower() == "craft":
            looks[method] = Style(_CRAFT, "solid", "circle", strong=True)
        elif method.lower() == "fedavg":
            looks[method] = Style(_FEDAVG, "dash", "square", strong=False)
    return {method: looks[method] for method in ordered}


def _style(colour: int, place: int) -> Style:
    dash = _DASHES[(place // len(_FREE)) % len(_DASHES)]
    return Style(colour, dash, _MARKERS[(place + 2) % len(_MARKERS)], strong=False)
