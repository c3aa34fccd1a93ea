"""Stored results: the parts of runs that tables and figures need, small enough for git."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from fedcraft.errors import DataError
from fedcraft.methods import method_title
from fedcraft.runs import Run
from fedcraft.runs.select import group
from fedcraft.runs.source import DirectorySource
from fedcraft.runs.study import Study, StudySource, is_study, write_study
from fedcraft.runs.summary import COLUMNS
from fedcraft.runs.tables import csv_text
from fedcraft.studies.published import TABLES
from fedcraft.studies.sweep import SweepResult

_DIGITS = 6
_NOT_STORED = ("data_root", "workers", "checkpoint_every", "checkpoint_minutes", "tracking")
_STATUS = ("state", "round", "rounds", "reason", "diverged", "split_hash")
_ENVIRONMENT = ("python", "processor", "cores", "packages", "torch_capability", "executor")
_ROUND_KEYS = (
    *("round", "virtual_time", "client_lr", "conflicts", "update_norm", "seconds"),
    *("evaluation", "evaluation_last", "left_out_shares", "backdoor"),
)
_COMPLETE = ("labels", "owners", "classes")


def collect(runs: Iterable[Run], folder: str | Path) -> Path:
    """Store finished runs in ``folder`` without weights, checkpoints and machine paths.

    Runs that are stored there already are kept. Every run keeps its configuration, its status and
    its last evaluation. The best setting of each method (all its seeds) also keeps its curve, the
    clients' final accuracies, and its conflicts; every split its label counts and names. Runs under
    attack keep no more than the others: their table needs no more, and there are hundreds.
    """
    target = Path(folder)
    done = [run for run in runs if run.done]
    if not done:
        raise DataError("runs: expected at least one finished run to collect, found none")
    known = Study(target).runs() if is_study(target) else []
    kept = {run.directory.name: run for run in (*known, *done)}.values()
    entries = [entry for problem in group(kept, "test") for entry in problem.entries]
    shown = {r for entry in entries for r in entry.chosen.runs if not r.values.get("attack")}
    trimmed = [
        run if isinstance(run.source, StudySource) else Run(_Trimmed(run.directory, run in shown))
        for run in kept
    ]
    return write_study(target, trimmed)


def stored(folder: str | Path) -> SweepResult:
    """Return the runs that :func:`collect` put into ``folder``."""
    return SweepResult(Path(folder), tuple(Study(Path(folder)).runs()))


def beside_published(rows: Iterable[Mapping[str, Any]], table: str) -> list[dict[str, Any]]:
    """Return table rows with the paper's numbers as ``mean_paper`` etc. and ``mean_difference``."""
    published = TABLES[table]
    together = []
    for row in rows:
        paper = published.get(row["method"])
        theirs = {f"{c}_paper": getattr(paper, c) if paper else math.nan for c in COLUMNS}
        together.append({**row, **theirs, "mean_difference": row["mean"] - theirs["mean_paper"]})
    return together


def missing_row(method: str) -> dict[str, Any]:
    """Return the row of a method that has not been run: no numbers, and the state "missing"."""
    unknown = dict.fromkeys((*COLUMNS, "mean_sd", "conflicts", "client_lr", "server_lr"), math.nan)
    counts = dict.fromkeys(("rounds", "seeds", "pairs", "diverged"), 0)
    names = {"method": method, "label": method_title(method), "baseline": "", "state": "missing"}
    return {**names, **unknown, **counts}


def rank_correlation(rows: Iterable[Mapping[str, Any]]) -> float:
    """Return Spearman's rank correlation of our means with the paper's; NaN below three methods."""
    pairs = [(float(row["mean"]), float(row["mean_paper"])) for row in rows]
    known = [pair for pair in pairs if math.isfinite(sum(pair))]
    if len(known) < 3:
        return math.nan
    ours, theirs = [pair[0] for pair in known], [pair[1] for pair in known]
    return float(spearmanr(ours, theirs).statistic)


@dataclass(frozen=True)
class _Trimmed(DirectorySource):
    """What is stored of a run: of one that is not ``shown``, no curve and no clients."""

    shown: bool

    def values(self) -> dict[str, Any]:
        return {k: v for k, v in (super().values() or {}).items() if k not in _NOT_STORED}

    def status(self) -> dict[str, Any]:
        return {key: value for key, value in super().status().items() if key in _STATUS}

    def environment(self) -> dict[str, Any]:
        about = super().environment() if self.shown else {}
        return {key: about[key] for key in _ENVIRONMENT if key in about}

    def records(self) -> list[dict[str, Any]]:
        evaluated = [record for record in super().records() if record.get("evaluation")]
        return [
            {key: _rounded(record[key]) for key in _ROUND_KEYS if key in record}
            for record in (evaluated if self.shown else evaluated[-1:])
        ]

    def table(self, name: str) -> bytes | None:
        content = super().table(name) if self.shown else None
        if content is None or name in _COMPLETE:
            return content
        names, *rows = csv.reader(io.StringIO(content.decode()))
        lines = ([_short(cell) for cell in row] for row in rows if self._kept(name, row))
        return csv_text([names, *lines]).encode()

    @cached_property
    def _last(self) -> str:
        return str(max((record["round"] for record in self.records()), default=0))

    def _kept(self, name: str, row: list[str]) -> bool:
        if name == "conflicts":
            return row[1] == "all"
        return row[0] == self._last and row[2:4] == ["test", "accuracy"]


def _short(text: str) -> str:
    try:
        return f"{float(text):.{_DIGITS}g}" if "." in text else text
    except ValueError:
        return text


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
