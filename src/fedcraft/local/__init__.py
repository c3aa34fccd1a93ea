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

__all__ = [
    "ClientData",
    "ClientState",
    "LocalObjective",
    "LocalResult",
    "LocalTask",
    "Loss",
    "SeedAddress",
]
