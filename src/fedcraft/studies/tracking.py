"""TensorBoard and MLflow, in addition to the tables on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

from fedcraft.config.schema import Config
from fedcraft.engine import Callback, RunInfo
from fedcraft.errors import MissingExtraError
from fedcraft.registry import optional

_TENSORBOARD = "tensorboard"  # the folder in a run directory


def require_tracking(config: Config) -> None:
    """Raise ``MissingExtraError`` unless the package that ``tracking`` asks for is installed."""
    if config.tracking != "none" and find_spec(config.tracking) is None:
        raise MissingExtraError(config.tracking, "tracking")


def viewing_command(config: Config, directory: Path) -> str:
    """Return the command that shows what ``tracking`` logged; empty if it logged nothing."""
    if config.tracking == "tensorboard":
        return f"tensorboard --logdir {quote(str(directory))}"
    if config.tracking == "mlflow":
        shared = os.environ.get("MLFLOW_TRACKING_URI")  # may hold a password: not printed
        store = '"$MLFLOW_TRACKING_URI"' if shared else quote(_mlflow_store(directory))
        return f"mlflow ui --backend-store-uri {store}"
    return ""


def trackers(config: Config, directory: Path) -> tuple[Callback, ...]:
    """Return the callbacks that ``tracking`` asks for; their files are in the run directory."""
    if config.tracking == "tensorboard":
        return (_TensorBoard(directory / _TENSORBOARD),)
    if config.tracking == "mlflow":
        return (_MLflow(config, directory),)
    return ()


def numbers(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a round's record, nested ones as ``evaluation/mean``."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and key != "round":
            yield prefix + key, float(value)


class _TensorBoard(Callback):
    """Scalars of every round; view them with ``tensorboard --logdir runs``."""

    def __init__(self, folder: Path) -> None:
        self._make = optional("torch.utils.tensorboard", "tracking", "tensorboard").SummaryWriter
        self._folder = str(folder)
        self._writer: Any = None

    def on_start(self, info: RunInfo) -> None:
        # Entries after the checkpoint are purged, as in the tables; at a new start, round 0 too.
        done = info.first_round
        self._writer = self._make(self._folder, purge_step=done + 1 if done else 0)

    def on_round(self, record: Mapping[str, Any]) -> None:
        for name, value in numbers(record):
            self._writer.add_scalar(name, value, record["round"])

    def on_end(self, state: str, reason: str) -> None:
        if self._writer is not None:
            self._writer.close()


class _MLflow(Callback):
    """A run in a local MLflow store beside the run directory; MLFLOW_TRACKING_URI wins."""

    def __init__(self, config: Config, directory: Path) -> None:
        self._mlflow = optional("mlflow", "tracking")
        self._config, self._directory = config, directory
        self._run: Any = None

    def on_start(self, info: RunInfo) -> None:
        self._mlflow.set_tracking_uri(_mlflow_store(self._directory))
        self._mlflow.set_experiment("fedcraft")
        self._run = self._mlflow.start_run(run_name=self._directory.name)
        self._mlflow.log_params({k: v for k, v in self._config.values().items() if v != {}})

    def on_round(self, record: Mapping[str, Any]) -> None:
        self._mlflow.log_metrics(dict(numbers(record)), step=record["round"])

    def on_end(self, state: str, reason: str) -> None:
        if self._run is not None:
            self._mlflow.set_tag("state", state)
            self._mlflow.end_run("FINISHED" if state in ("finished", "stopped") else "FAILED")


def _mlflow_store(directory: Path) -> str:
    default = f"sqlite:///{(directory / 'mlflow.db').resolve()}"
    return os.environ.get("MLFLOW_TRACKING_URI") or default
