"""fedcraft on a Ray cluster: the executor ``ray``, and sweeps whose runs are Ray tasks."""

from fedcraft.cluster.crew import RayCrew, hire
from fedcraft.cluster.session import Session
from fedcraft.cluster.sweep import sweep

__all__ = ["RayCrew", "Session", "hire", "sweep"]
