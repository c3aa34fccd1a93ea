"""fedcraft on a Ray cluster: the executor ``ray``, and sweeps whose runs are Ray tasks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcraft.cluster.crew import RayCrew, hire
    from fedcraft.cluster.pool import sweep
    from fedcraft.cluster.session import Session

__all__ = ["RayCrew", "Session", "hire", "sweep"]

# Loaded when asked for: a worker imports this package too, and needs none of them.
_LAZY = {"RayCrew": "crew", "Session": "session", "hire": "crew", "sweep": "pool"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
