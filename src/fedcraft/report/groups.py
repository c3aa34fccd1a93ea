"""Sorting runs: which share a problem, which are one setting with several seeds, which is best.

* A *problem* is a data set, its split into clients, and a model: only runs of one problem compare.
* A *setting* is everything but the seed and the machine: its runs are repetitions.
* An *entry* is one method in one problem, shown at its setting with the best final mean accuracy,
  as the paper does (Appendix C).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcraft.report.names import Style, display_name, in_paper_order, problem_name, styles
from fedcraft.report.runs import RunData

__all__ = ["Entry", "Problem", "Setting", "flatten", "group"]

_PROBLEM_KEYS = ("dataset", "model", "clients", "clients_per_round")
_PROBLEM_TABLES = ("partition", "data", "split")
# What changes neither the training nor its result.
_MACHINE_KEYS = {"seed", "workers", "device", "out", "executor", "threads", "name"}
_MACHINE_TABLES = {"checkpoint", "tracking", "output", "logging"}


@dataclass(frozen=True)
class Setting:
    """The repetitions (seeds) of one configuration."""

    config: Mapping[str, Any]
    runs: tuple[RunData, ...]

    def final(self, metric: str) -> float:
        """The final value of ``metric``, averaged over the seeds that have one."""
        values = self.finals(metric)
        return float(np.mean(values)) if values else math.nan

    def spread(self, metric: str) -> float:
        """The standard deviation of the final value over seeds; NaN for a single seed."""
        values = self.finals(metric)
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan

    def finals(self, metric: str) -> list[float]:
        """The final value of ``metric`` of each seed that has one."""
        values = (run.final(metric) for run in self.runs)
        return [value for value in values if math.isfinite(value)]


@dataclass(frozen=True)
class Entry:
    """One method in one problem: all its settings, and the one to show."""

    method: str
    style: Style
    chosen: Setting
    settings: tuple[Setting, ...]

    @property
    def label(self) -> str:
        """The method as the paper writes it."""
        return display_name(self.method)

    @property
    def runs(self) -> tuple[RunData, ...]:
        """The seeds of the chosen setting."""
        return self.chosen.runs


@dataclass(frozen=True)
class Problem:
    """Runs that may be compared with each other, by method in the paper's order."""

    title: str
    config: Mapping[str, Any]
    entries: tuple[Entry, ...]

    def entry(self, method: str) -> Entry | None:
        """The entry of a method, if it was run."""
        return next((e for e in self.entries if e.method.lower() == method), None)


def group(runs: Iterable[RunData]) -> list[Problem]:
    """The problems of ``runs`` in the order they first appear."""
    by_problem: dict[str, list[RunData]] = defaultdict(list)
    for run in runs:
        by_problem[_fingerprint(_problem_config(run.config))].append(run)
    looks = styles(run.method for members in by_problem.values() for run in members)
    configs = [_problem_config(members[0].config) for members in by_problem.values()]
    return [
        Problem(_title(config, configs), config, _entries(members, looks))
        for config, members in zip(configs, by_problem.values(), strict=True)
    ]


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _entries(runs: list[RunData], looks: Mapping[str, Style]) -> tuple[Entry, ...]:
    by_method: dict[str, list[RunData]] = defaultdict(list)
    for run in runs:
        by_method[run.method].append(run)
    return tuple(_entry(m, looks[m], by_method[m]) for m in in_paper_order(by_method))


def _title(config: Mapping[str, Any], others: list[dict[str, Any]]) -> str:
    """Data set and model as in the paper's table heads, and what else tells them apart."""
    same = [o for o in others if (o["dataset"], o["model"]) == (config["dataset"], config["model"])]
    extra = [k for k in config if any(o.get(k) != config[k] for o in same)]
    tail = "".join(f", {key} {config[key]}" for key in extra)
    return f"{problem_name(config['dataset'])} & {problem_name(config['model'])}{tail}"


def _entry(method: str, style: Style, runs: list[RunData]) -> Entry:
    settings = _settings(runs)
    return Entry(method, style, max(settings, key=_score), tuple(settings))


def _settings(runs: list[RunData]) -> list[Setting]:
    by_config: dict[str, dict[int, RunData]] = defaultdict(dict)
    for run in runs:
        seeds = by_config[_fingerprint(_setting_config(run.config))]
        known = seeds.get(run.seed)
        if known is None or run.last_round > known.last_round:
            seeds[run.seed] = run
    return [_setting(list(seeds.values())) for seeds in by_config.values()]


def _setting(runs: list[RunData]) -> Setting:
    ordered = tuple(sorted(runs, key=lambda run: run.seed))
    return Setting(_setting_config(ordered[0].config), ordered)


def _score(setting: Setting) -> tuple[float, int]:
    value = setting.final("mean")
    rounds = max(run.last_round for run in setting.runs)
    return (value if math.isfinite(value) else -math.inf), rounds


def _problem_config(config: Mapping[str, Any]) -> dict[str, Any]:
    tables = {f"{k}.{n}": v for k in _PROBLEM_TABLES for n, v in _table(config, k).items()}
    return {key: config.get(key) for key in _PROBLEM_KEYS} | tables


def _setting_config(config: Mapping[str, Any]) -> dict[str, Any]:
    flat = flatten({k: v for k, v in config.items() if k not in _MACHINE_TABLES})
    return {key: value for key, value in flat.items() if key not in _MACHINE_KEYS}


def _table(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    return flatten(value) if isinstance(value, Mapping) else {"": value}


def _fingerprint(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True, default=str)
