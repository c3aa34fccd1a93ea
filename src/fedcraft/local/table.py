"""The table of local objectives; a new one adds its file, its test and one line here."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from fedcraft.errors import InputError, require_numbers
from fedcraft.local.base import LocalObjective

__all__ = ["OBJECTIVES", "local_objective", "register"]

OBJECTIVES: dict[str, str] = {
    "plain": "fedcraft.local.sgd:PlainSGD",
    "proximal": "fedcraft.local.proximal:Proximal",
    "ditto": "fedcraft.local.ditto:Ditto",
    "perfedavg": "fedcraft.local.perfedavg:PerFedAvg",
    "fedrep": "fedcraft.local.fedrep:FedRep",
}


def local_objective(name: str, **params: Any) -> LocalObjective:
    """Return a local objective by its name in ``OBJECTIVES``.

    >>> local_objective("proximal", mu=0.1).personal
    False
    """
    if name not in OBJECTIVES:
        near = difflib.get_close_matches(name, OBJECTIVES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InputError(
            f"local objective: unknown name {name!r}{hint} Known: {', '.join(OBJECTIVES)}"
        )
    module, _, attribute = OBJECTIVES[name].partition(":")
    objective = getattr(importlib.import_module(module), attribute)
    try:
        built: LocalObjective = objective(**params)
    except TypeError as error:
        require_numbers(objective, params)
        raise InputError(f"local objective {name!r}: {error}") from error
    return built


def register(name: str, path: str) -> None:
    """Add an objective of your own under ``name``; ``path`` is ``"package.module:ClassName"``."""
    if name in OBJECTIVES and OBJECTIVES[name] != path:
        raise InputError(f"local objective: {name!r} is taken by {OBJECTIVES[name]}")
    OBJECTIVES[name] = path
