"""Stored results: run directories trimmed to what tables and figures need, small enough for git."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from fedcraft.config.toml import CONFIG_FILE, to_toml
from fedcraft.errors import DataError
from fedcraft.runs import Run, find_runs
from fedcraft.runs.select import group
from fedcraft.runs.summary import COLUMNS
from fedcraft.studies.published import TABLES
from fedcraft.studies.sweep import SweepResult

__all__ = ["beside_published", "collect", "rank_correlation", "stored"]

_DIGITS = 6
_NOT_STORED = ("data_root", "workers", "checkpoint_every", "checkpoint_minutes", "tracking")
_ENVIRONMENT = ("python", "processor", "cores", "packages", "torch_capability", "executor")
_ROUND_KEYS = ("round", "client_lr", "conflicts", "update_norm", "seconds", "evaluation")


def collect(runs: Iterable[Run], folder: str | Path) -> Path:
    """Copy finished runs to ``folder`` without weights, checkpoints and machine paths.

    Every run keeps its configuration, its status and its last evaluation. The best setting of each
    method (all its seeds) also keeps its curve, the clients' final accuracies and names, and its
    conflicts; one run of each split keeps the label counts.
    """
    target = Path(folder)
    done = [run for run in runs if run.done]
    if not done:
        raise DataError("runs: expected at least one finished run to collect, found none")
    entries = [entry for problem in group(done, "test") for entry in problem.entries]
    shown = {run.directory for entry in entries for run in entry.chosen.runs}
    splits: set[str] = set()
    for run in done:
        whole = run.directory in shown
        _store(run, target / run.directory.name, whole=whole)
        split = str(run.status.get("split_hash"))
        if whole and split not in splits:
            splits.add(split)
            _copy(run, target / run.directory.name, "labels.csv", "classes.csv")
    return target


def stored(folder: str | Path) -> SweepResult:
    """Return the runs that :func:`collect` put into ``folder``."""
    return SweepResult(Path(folder), tuple(find_runs(folder)))


def beside_published(rows: Iterable[Mapping[str, Any]], table: str) -> list[dict[str, Any]]:
    """Return table rows with the paper's numbers as ``mean_paper`` etc. and ``mean_difference``."""
    published = TABLES[table]
    together = []
    for row in rows:
        paper = published.get(row["method"])
        theirs = {f"{c}_paper": getattr(paper, c) if paper else math.nan for c in COLUMNS}
        together.append({**row, **theirs, "mean_difference": row["mean"] - theirs["mean_paper"]})
    return together


def rank_correlation(rows: Iterable[Mapping[str, Any]]) -> float:
    """Return Spearman's rank correlation of our means with the paper's; NaN below three methods."""
    pairs = [(float(row["mean"]), float(row["mean_paper"])) for row in rows]
    known = [pair for pair in pairs if math.isfinite(sum(pair))]
    if len(known) < 3:
        return math.nan
    ours, theirs = [pair[0] for pair in known], [pair[1] for pair in known]
    return float(spearmanr(ours, theirs).statistic)


def _store(run: Run, target: Path, *, whole: bool) -> None:
    target.mkdir(parents=True, exist_ok=True)
    values = {k: v for k, v in run.config.values().items() if k not in _NOT_STORED}
    (target / CONFIG_FILE).write_text(to_toml(values), encoding="utf-8")
    kept = ("state", "round", "rounds", "reason", "diverged", "split_hash")
    status = {key: run.status[key] for key in kept if key in run.status}
    _write_json(target / "status.json", status)
    records = [_trimmed(record) for record in run.records if record.get("evaluation")]
    lines = records if whole else records[-1:]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (target / "metrics.jsonl").write_text(text, encoding="utf-8")
    if whole:
        _store_clients(run, target)
        about = json.loads((run.directory / "environment.json").read_text(encoding="utf-8"))
        known = {key: about[key] for key in _ENVIRONMENT if key in about}
        _write_json(target / "environment.json", known)


def _copy(run: Run, target: Path, *names: str) -> None:
    for name in names:
        if (run.directory / name).is_file():
            shutil.copy(run.directory / name, target)


def _store_clients(run: Run, target: Path) -> None:
    _copy(run, target, "owners.csv")
    last = str(max((r["round"] for r in run.records if r.get("evaluation")), default=0))
    _filter_csv(
        run.directory / "clients.csv",
        target / "clients.csv",
        lambda row: row["round"] == last and row["split"] == "test" and row["metric"] == "accuracy",
    )
    _filter_csv(
        run.directory / "conflicts.csv", target / "conflicts.csv", lambda row: row["layer"] == "all"
    )


def _filter_csv(source: Path, target: Path, keep: Any) -> None:
    if not source.is_file():
        return
    with source.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        kept = [row for row in reader if keep(row)]
        names = reader.fieldnames or []
    with target.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _short(value) for key, value in row.items()} for row in kept)


def _short(text: str) -> str:
    try:
        return f"{float(text):.{_DIGITS}g}" if "." in text else text
    except ValueError:
        return text


def _trimmed(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _rounded(record[key]) for key in _ROUND_KEYS if key in record}


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
