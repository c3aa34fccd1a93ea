"""The engine: what turns a method into a training run."""

from fedcraft.config.settings import Settings
from fedcraft.engine.callbacks import Callback, RunInfo
from fedcraft.engine.executors.processes import WorkerError
from fedcraft.engine.interrupt import Interrupted
from fedcraft.engine.loop import TooFewClients
from fedcraft.engine.progress import progress
from fedcraft.engine.simulation import run
from fedcraft.metrics.scores import Scores
from fedcraft.runs.result import Result

__all__ = [
    "Callback",
    "Interrupted",
    "Result",
    "RunInfo",
    "Scores",
    "Settings",
    "TooFewClients",
    "WorkerError",
    "progress",
    "run",
]
