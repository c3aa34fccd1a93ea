"""What a client does in a round: local objectives, and the store of client states.

``OBJECTIVES`` is the table of names; a new one adds its class, its test and one line here.
"""

from __future__ import annotations

from typing import Any

from fedcraft.local.objective import (
    ClientData,
    ClientState,
    LocalObjective,
    LocalResult,
    LocalTask,
    Loss,
    SeedAddress,
)
from fedcraft.local.store import ClientStates
from fedcraft.registry import build

__all__ = [
    "OBJECTIVES",
    "ClientData",
    "ClientState",
    "ClientStates",
    "LocalObjective",
    "LocalResult",
    "LocalTask",
    "Loss",
    "SeedAddress",
    "local_objective",
]

OBJECTIVES: dict[str, str] = {
    "plain": "fedcraft.local.sgd:PlainSGD",
    "proximal": "fedcraft.local.proximal:Proximal",
    "ditto": "fedcraft.local.ditto:Ditto",
    "perfedavg": "fedcraft.local.perfedavg:PerFedAvg",
    "fedrep": "fedcraft.local.fedrep:FedRep",
    "scaffold": "fedcraft.local.scaffold:Scaffold",
    "feddyn": "fedcraft.local.feddyn:FedDyn",
    "moon": "fedcraft.local.moon:Moon",
    "propfair": "fedcraft.local.propfair:PropFair",
    "fedbn": "fedcraft.local.fedbn:FedBN",
    "apfl": "fedcraft.local.apfl:APFL",
    "pfedme": "fedcraft.local.pfedme:PFedMe",
}


def local_objective(name: str, **params: Any) -> LocalObjective:
    """Return a local objective by its name in ``OBJECTIVES``, or ``package.module:Class``.

    >>> local_objective("proximal", mu=0.1).personal
    False
    """
    built: LocalObjective = build("local objective", LocalObjective, OBJECTIVES, name, params)
    return built
