"""Run directories as the report sees them: finished, stopped, or still being written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedcraft.config.schema import names_another
from fedcraft.errors import DataError
from fedcraft.methods import mixture_name
from fedcraft.report.extras import needs
from fedcraft.report.files import (
    read_json,
    read_json_lines,
    read_last_rounds,
    read_names,
    read_table,
    read_toml,
)

with needs("pandas"):
    import pandas as pd

__all__ = ["RunData", "load_runs"]

_CONFIG = "config.toml"
_NOT_RUNS = {"checkpoints", ".git", "__pycache__"}


@dataclass(frozen=True)
class RunData:
    """One run directory; each file is read when first asked for, and only once.

    Args:
        path: the directory that holds ``config.toml``.
    """

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return read_toml(self.path / _CONFIG)

    @cached_property
    def status(self) -> dict[str, Any]:
        """``status.json``, or nothing when the run has not written it yet."""
        return read_json(self.path / "status.json")

    @cached_property
    def environment(self) -> dict[str, Any]:
        """``environment.json``, or nothing."""
        return read_json(self.path / "environment.json")

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """One record per round in order; a round written twice (after a resume) counts once."""
        records = read_json_lines(self.path / "metrics.jsonl")
        latest = {record["round"]: record for record in records if "round" in record}
        return [latest[number] for number in sorted(latest)]

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """The evaluated rounds: index ``round``, one column per number of the evaluation."""
        rows = {
            record["round"]: {k: v for k, v in record["evaluation"].items() if _is_number(v)}
            for record in self.rounds
            if isinstance(record.get("evaluation"), dict)
        }
        frame = pd.DataFrame.from_dict(rows, orient="index", dtype=float)
        return frame.rename_axis("round")

    @cached_property
    def conflicts(self) -> pd.DataFrame:
        """The per-layer certificate of every round."""
        return read_table(self.path / "conflicts.csv")

    @cached_property
    def labels(self) -> pd.DataFrame:
        """How many training samples of each label every client holds."""
        return read_table(self.path / "labels.csv")

    @cached_property
    def owners(self) -> dict[int, str]:
        """What the owner behind each client is called; empty where clients are no owners."""
        return read_names(self.path / "owners.csv")

    @cached_property
    def classes(self) -> dict[int, str]:
        """What each label is called, if the run has told it."""
        return read_names(self.path / "classes.csv")

    @cached_property
    def client_accuracy(self) -> pd.Series:
        """Test accuracy of each client (index: client id) at the last whole evaluation."""
        table = read_last_rounds(self.path / "clients.csv")
        if not {"round", "client", "split", "metric", "value"} <= set(table.columns):
            return pd.Series(dtype=float)
        chosen = table[(table["split"] == "test") & (table["metric"] == "accuracy")]
        finished = self.state == "finished"
        number = chosen["round"].max() if finished else _last_whole_round(chosen["round"])
        last = chosen[chosen["round"] == number]
        return last.drop_duplicates("client", keep="last").set_index("client")["value"].sort_index()

    @property
    def name(self) -> str:
        """What tables call this run: its label, or else its method.

        A run directory may be of any age and origin: one whose label is the name of another method
        than it ran is told apart from that.
        """
        method, label = str(self.config["method"]), str(self.config.get("label") or "")
        if not label:
            return mixture_name(method, self.config)
        return f"{label} ({method})" if names_another(label, method) else label

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config.get("seed", 0))

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``stopped``, ``interrupted``, ``failed``, or ``unknown``."""
        return str(self.status.get("state", "unknown"))

    @property
    def diverged(self) -> bool:
        """Whether the run ended because a client sent NaN or Inf."""
        return str(self.status.get("reason", "")).startswith("not finite")

    @property
    def split_hash(self) -> str | None:
        """The fingerprint of the split into clients, if the run has told it."""
        value = self.status.get("split_hash")
        return None if value is None else str(value)

    @property
    def last_round(self) -> int:
        """The number of completed rounds."""
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    def values(self, metric: str) -> pd.Series:
        """Every evaluated value of ``metric`` (index ``round``)."""
        if metric not in self.evaluations:
            return pd.Series(dtype=float)
        return self.evaluations[metric].dropna()

    def final(self, metric: str) -> float:
        """The last evaluated value of ``metric``; NaN when there is none."""
        values = self.values(metric)
        return float(values.iloc[-1]) if len(values) else float("nan")


def load_runs(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[RunData]:
    """Every run directory in or below ``paths``, each once, in the order found.

    Raises:
        DataError: a path does not exist, or no ``config.toml`` was found anywhere.
    """
    roots = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    paths_found = {path: None for root in roots for path in _run_directories(Path(root))}
    # A folder may also hold the configuration of a sweep, which names no method.
    found = [run for run in map(RunData, paths_found) if "method" in run.config]
    if not found:
        names = ", ".join(str(root) for root in roots) or "an empty list"
        raise DataError(
            f"paths should hold run directories, but no {_CONFIG} was found in or below {names}. "
            "Give the folder that `fedcraft run --out` wrote."
        )
    return found


def _run_directories(root: Path) -> list[Path]:
    if not root.is_dir():
        raise DataError(f"{root} should be a run directory or a folder of runs, but is no folder.")
    found: list[Path] = []
    for folder, children, files in os.walk(root.resolve()):
        children[:] = sorted(set(children) - _NOT_RUNS)
        if _CONFIG in files:
            found.append(Path(folder))
    return found


def _last_whole_round(rounds: pd.Series) -> int:
    """The last round with as many rows as the fullest one: later ones are being written."""
    counts = rounds.value_counts()
    return int(counts[counts == counts.max()].index.max()) if len(counts) else -1


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
