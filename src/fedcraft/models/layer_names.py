"""Readable names for the layers of a module."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from torch import nn


def layer_names(module: nn.Module, layers: Iterable[str]) -> dict[str, str]:
    """Return what to call each layer; paths that are numbers get the kind of module and its place.

    >>> stack = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
    >>> layer_names(stack, ["1", "3", "head.fc"])
    {'1': 'Linear 1', '3': 'Linear 2', 'head.fc': 'head.fc'}
    """
    titles = _titles(module)
    return {layer: _named(layer, titles) for layer in layers}


def _titles(module: nn.Module) -> dict[str, str]:
    """Name every module with parameters whose path consists of numbers only."""
    seen: Counter[str] = Counter()
    titles = {}
    for path, part in module.named_modules():
        if re.fullmatch(r"\d+(\.\d+)*", path) and any(True for _ in part.parameters(recurse=False)):
            kind = re.sub(r"\d+d$", "", type(part).__name__)  # Conv2d is a Conv
            seen[kind] += 1
            titles[path] = f"{kind} {seen[kind]}"
    return titles


def _named(layer: str, titles: dict[str, str]) -> str:
    """Name a layer, also one that is a single tensor of a module: ``1.weight``."""
    if layer in titles:
        return titles[layer]
    path, _, tensor = layer.rpartition(".")
    return f"{titles[path]} {tensor}" if path in titles else layer
