"""The table of local objectives; a new one adds its file, its test and one line here."""

from __future__ import annotations

from typing import Any

from fedcraft.local.base import LocalObjective
from fedcraft.registry import build

__all__ = ["OBJECTIVES", "local_objective"]

OBJECTIVES: dict[str, str] = {
    "plain": "fedcraft.local.sgd:PlainSGD",
    "proximal": "fedcraft.local.proximal:Proximal",
    "ditto": "fedcraft.local.ditto:Ditto",
    "perfedavg": "fedcraft.local.perfedavg:PerFedAvg",
    "fedrep": "fedcraft.local.fedrep:FedRep",
}


def local_objective(name: str, **params: Any) -> LocalObjective:
    """Return a local objective by its name in ``OBJECTIVES``, or ``package.module:Class``.

    >>> local_objective("proximal", mu=0.1).personal
    False
    """
    built: LocalObjective = build("local objective", LocalObjective, OBJECTIVES, name, params)
    return built
