"""fedcraft on a Ray cluster: the executor ``ray``, and sweeps whose runs are Ray tasks."""

from fedcraft.cluster.connection import RayConnection
from fedcraft.cluster.ray_executor import RayExecutor, make_ray_executor
from fedcraft.cluster.sweeps import sweep

__all__ = ["RayConnection", "RayExecutor", "make_ray_executor", "sweep"]
