"""The engine: what turns a method into a training run."""

from fedcraft.engine.callbacks import Callback, RunInfo
from fedcraft.engine.fleet import Scores
from fedcraft.engine.interrupt import Interrupted
from fedcraft.engine.loop import TooFewClients
from fedcraft.engine.processes import WorkerError
from fedcraft.engine.progress import progress
from fedcraft.engine.result import Result
from fedcraft.engine.run import run
from fedcraft.engine.settings import Settings

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
