"""Configurations, environment, and the list of runs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedcraft.runs import Run
from fedcraft.runs.problems import flatten
from fedcraft.runs.select import Entry, Problem

_SKIPPED = {"method"}


def configuration(problem: Problem) -> dict[str, Any]:
    """The keys that all shown methods share, and a row per method of those that differ."""
    configs = {entry.label: dict(entry.chosen.config) for entry in problem.entries}
    keys = {key: None for config in configs.values() for key in config if key not in _SKIPPED}
    shared = [key for key in keys if len({str(c.get(key, "")) for c in configs.values()}) == 1]
    different = [key for key in keys if key not in shared]
    first = next(iter(configs.values()))
    return {
        "shared": [(key, _text(first[key])) for key in shared],
        "different": different,
        "rows": [(m, [_text(c.get(k, "–")) for k in different]) for m, c in configs.items()],
    }


def environment(problem: Problem) -> list[tuple[str, str]]:
    """The environment of the first run that recorded it, as key and value."""
    runs = [run for entry in problem.entries for run in entry.runs if run.environment]
    return (
        [(key, _text(value)) for key, value in flatten(runs[0].environment).items()] if runs else []
    )


def run_list(problem: Problem, link: Callable[[Run], str] = lambda run: "") -> list[dict[str, Any]]:
    """Every run with its state, its rounds, its final mean and its link; shown ones are marked."""
    pairs = [(e, run) for e in problem.entries for s in e.settings for run in s.runs]
    root = _common_folder([run.directory for _, run in pairs])
    return [{**_run_row(entry, run, root), "link": link(run)} for entry, run in pairs]


def _run_row(entry: Entry, run: Run, root: Path) -> dict[str, Any]:
    mean = run.final("mean")
    return {
        "method": entry.label,
        "path": run.directory.relative_to(root).as_posix(),
        "seed": run.seed,
        "client_lr": _text(run.values.get("client_lr", "–")),
        "server_lr": _text(run.values.get("server_lr", "–")),
        "rounds": f"{run.last_round} / {run.values.get('rounds', '?')}",
        "state": run.state,
        "reason": "; ".join(filter(None, [str(run.status.get("reason") or ""), _budget(run)])),
        "mean": f"{mean:.3f}" if math.isfinite(mean) else "–",
        "shown": run in entry.runs,
    }


def _budget(run: Run) -> str:
    """The privacy budget that a run has spent, if it counts one."""
    spent = [row["privacy"] for row in run.records if "privacy" in row]
    return f"epsilon {spent[-1]['epsilon']:.3g} at delta {spent[-1]['delta']:g}" if spent else ""


def _common_folder(paths: list[Path]) -> Path:
    """The common parent folder, so that the page does not show absolute paths."""
    return Path(os.path.commonpath([path.parent for path in paths]))


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    return str(value)
