"""What a client does in a round: local objectives, and the store of what clients keep."""

from fedcraft.local.base import (
    ClientData,
    ClientState,
    LocalObjective,
    LocalResult,
    LocalTask,
    Loss,
    SeedAddress,
)
from fedcraft.local.store import ClientStates, StateIndex
from fedcraft.local.table import OBJECTIVES, local_objective

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
    "StateIndex",
    "local_objective",
]
