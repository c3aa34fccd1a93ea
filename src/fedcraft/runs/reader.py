"""A run directory as Python sees it: its configuration, how it ended, and its tidy tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcraft.config.schema import Config
from fedcraft.config.toml import CONFIG_FILE, load_config, read_toml
from fedcraft.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Result", "load_pandas", "results_in"]


@dataclass(frozen=True)
class Result:
    """One run, read from its directory when asked.

    ``clients()``, ``conflicts()``, ``labels()`` and ``rounds()`` are pandas frames; the files
    behind them (``result.directory / "clients.csv"``) are plain CSV for polars and all others.
    """

    directory: Path

    @cached_property
    def config(self) -> Config:
        """The full configuration of the run."""
        return load_config(self.directory, names=False)

    @property
    def method(self) -> str:
        """What tables call this run."""
        return self.config.name

    @property
    def status(self) -> Mapping[str, Any]:
        """status.json as it is now; empty before the run has started."""
        return _read_json(self.directory / "status.json")

    @property
    def state(self) -> str:
        """running, finished, stopped, interrupted, failed, or new."""
        return str(self.status.get("state", "new"))

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do: all rounds, or a stop condition was met."""
        return self.state in ("finished", "stopped")

    @property
    def diverged(self) -> bool:
        """Whether the run ended because a client sent NaN or Inf."""
        return str(self.status.get("reason", "")).startswith("not finite")

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The per-round records of metrics.jsonl, each round once, in order; read once."""
        found = {
            record["round"]: record for record in _json_lines(self.directory / "metrics.jsonl")
        }
        return [found[number] for number in sorted(found)]

    @cached_property
    def evaluation(self) -> Mapping[str, float]:
        """The last evaluation: mean, std, best10, worst10, and the other fairness metrics."""
        evaluations = [r["evaluation"] for r in self.records if r.get("evaluation")]
        return evaluations[-1] if evaluations else {}

    def final(self, metric: str) -> float:
        """Return one number of the last evaluation, NaN if it is not there."""
        value = self.evaluation.get(metric)
        return math.nan if value is None else float(value)

    def conflicts_per_round(self) -> float:
        """Return the mean number of clients per round that the step worked against."""
        counts = [r["conflicts"]["after"] for r in self.records if r.get("conflicts")]
        known = [count for count in counts if count is not None]
        return sum(known) / len(known) if known else math.nan

    def clients(self) -> pd.DataFrame:
        """Tidy per-client table: round, client, split, metric, value, n; with owners their name."""
        clients = self._table("clients")
        if not (self.directory / "owners.csv").is_file():
            return clients
        named: pd.DataFrame = clients.merge(self.owners(), on="client", how="left")
        return named

    def owners(self) -> pd.DataFrame:
        """Which owner of the data each client is: client, name."""
        # A name is text, also where it is NA or 007.
        return self._table("owners", dtype={"name": str}, keep_default_na=False)

    def conflicts(self) -> pd.DataFrame:
        """Per-round, per-layer certificate of the steps."""
        return self._table("conflicts")

    def labels(self) -> pd.DataFrame:
        """How often each client has each label in its training part."""
        return self._table("labels")

    def rounds(self) -> pd.DataFrame:
        """One row per round, nested numbers as dotted columns (``evaluation.mean``)."""
        frame: pd.DataFrame = load_pandas().json_normalize(self.records)
        return frame

    def _table(self, name: str, **options: Any) -> pd.DataFrame:
        path = self.directory / f"{name}.csv"
        if not path.is_file():
            raise DataError(
                f"{path} does not exist; the run is {self.state} and has not written it"
            )
        frame: pd.DataFrame = load_pandas().read_csv(path, **options)
        return frame


def results_in(folder: Path) -> list[Result]:
    """Return every run directory in or below ``folder``, in order of their paths."""
    if not folder.is_dir():
        raise DataError(f"{folder} should be a folder with runs, but there is none")
    found = sorted(path.parent for path in folder.rglob(CONFIG_FILE))
    return [Result(path) for path in found if "method" in read_toml(path / CONFIG_FILE)]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    # The last line may still be on its way to the disk.
    for line in text[: text.rfind("\n") + 1].splitlines():
        yield json.loads(line)


def load_pandas() -> Any:
    """Import what the tables are made of, or say how to get it."""
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError("pandas", "report") from error
    return pandas
