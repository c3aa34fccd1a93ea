"""The engine: it trains a model with a method."""

from fedcraft.config.settings import Settings
from fedcraft.engine.callbacks import Callback, RunInfo
from fedcraft.engine.executors.processes import WorkerError
from fedcraft.engine.interrupt import Interrupted
from fedcraft.engine.loop import TooFewClients
from fedcraft.engine.progress import progress
from fedcraft.engine.simulation import run
from fedcraft.engine.trained import TrainedModel
from fedcraft.metrics.scores import Scores

__all__ = [
    "Callback",
    "Interrupted",
    "RunInfo",
    "Scores",
    "Settings",
    "TooFewClients",
    "TrainedModel",
    "WorkerError",
    "progress",
    "run",
]
