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
from fedcraft.local.sgd import decayed_rate
from fedcraft.local.table import OBJECTIVES, local_objective, register

__all__ = [
    "OBJECTIVES",
    "ClientData",
    "ClientState",
    "LocalObjective",
    "LocalResult",
    "LocalTask",
    "Loss",
    "SeedAddress",
    "decayed_rate",
    "local_objective",
    "register",
]
