"""fedcraft on a Ray cluster: the executor ``ray``, and sweeps whose runs are Ray tasks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcraft.cluster.connection import RayConnection
    from fedcraft.cluster.ray_executor import RayExecutor, make_ray_executor
    from fedcraft.cluster.sweeps import sweep

__all__ = ["RayConnection", "RayExecutor", "make_ray_executor", "sweep"]

# Loaded on first use: a worker imports this package too, and needs none of them.
_MODULES = {"RayConnection": "connection", "sweep": "sweeps"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'ray_executor')}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
