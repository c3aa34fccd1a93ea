"""Sorting runs: which share a problem, which are one setting with several seeds, which is best.

* A *problem* is a data set, its split into clients, and a model: only runs of one problem compare.
* A *setting* is everything but the seed and the machine: its runs are repetitions.
* An *entry* is one method in one problem, shown at its best setting. The paper takes the setting
  with the best mean test accuracy (Appendix C); where every run of a problem has a validation part,
  that part chooses, because test data should not have a say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedcraft.config.schema import MACHINE_KEYS
from fedcraft.report.extras import needs
from fedcraft.report.names import Style, display_name, in_order, problem_name, styles
from fedcraft.report.runs import RunData
from fedcraft.runs.problems import fingerprint, flatten, problem_of, tail
from fedcraft.runs.select import SCORE, Judge, best_on_shared_seeds

with needs("pandas"):
    import pandas as pd

__all__ = ["Entry", "Judge", "Problem", "Setting", "group"]

_NOT_SETTING = MACHINE_KEYS | {"seed", "label"}


@dataclass(frozen=True)
class Setting:
    """The repetitions (seeds) of one configuration."""

    config: Mapping[str, Any]
    runs: tuple[RunData, ...]

    @property
    def counted(self) -> tuple[RunData, ...]:
        """The runs that have something to tell: a first evaluation, or that they diverged."""
        return tuple(run for run in self.runs if len(run.values("mean")) or run.diverged)

    @property
    def seeds(self) -> set[int]:
        """The seeds that count; the others are still to come."""
        return {run.seed for run in self.counted}

    @property
    def rounds(self) -> int:
        """The round that its numbers are of, the earliest if seeds stopped at different ones."""
        evaluated = self.shared("mean").index
        reached = min(run.last_round for run in self.counted or self.runs)
        return reached if self.done or not len(evaluated) else int(evaluated[-1])

    @property
    def done(self) -> bool:
        """Whether every seed that counts has come to its end, be it an early one."""
        return all(run.state in ("finished", "stopped") for run in self.counted)

    def on(self, seeds: set[int]) -> Setting:
        """The same setting with only the runs of these seeds."""
        return Setting(self.config, tuple(run for run in self.runs if run.seed in seeds))

    def shared(self, metric: str) -> pd.DataFrame:
        """``metric`` of each seed (columns) at the rounds (index) where all have been evaluated.

        Seeds that have not been evaluated yet are left out. There is no row at all if one diverged
        before it was: those that are left would flatter the setting.
        """
        columns = [(run.values(metric), run.diverged) for run in self.runs]
        counted = [values for values, diverged in columns if len(values) or diverged]
        return pd.concat(counted, axis=1, join="inner").sort_index() if counted else pd.DataFrame()

    def final(self, metric: str) -> float:
        """The final value of ``metric``, averaged over the seeds; see :meth:`finals`."""
        values = self.finals(metric)
        return float(np.mean(values)) if values else math.nan

    def spread(self, metric: str) -> float:
        """The standard deviation of the final value over seeds; NaN for a single seed."""
        values = self.finals(metric)
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan

    def finals(self, metric: str) -> list[float]:
        """The value of ``metric`` of each seed: at its end if all are done, else at equal rounds.

        Those are the last that all of them share; seeds that share none were evaluated at their
        ends alone. None at all if one diverged before it was evaluated.
        """
        table = self.shared(metric)
        at_end = self.done or table.empty
        ends = [run.final(metric) for run in self.counted]
        values = ends if at_end else [float(value) for value in table.iloc[-1]]
        return values if all(map(math.isfinite, values)) else []

    @property
    def diverged(self) -> bool:
        """Whether any of its seeds ended in NaN or Inf."""
        return any(run.diverged for run in self.runs)

    @property
    def sound_mean(self) -> float:
        """The final mean; NaN if it diverged, whatever was measured before that."""
        return math.nan if self.diverged else self.final("mean")

    def score(self, judge: Judge) -> tuple[bool, float, int]:
        """What the choice goes by: a setting that diverged or has no number never wins."""
        value = self.final(SCORE[judge])
        sound = math.isfinite(value) and not self.diverged
        return sound, value if sound else 0.0, max(run.last_round for run in self.runs)


@dataclass(frozen=True)
class Entry:
    """One method (or label) in one problem: all its settings, and the one to show."""

    name: str
    style: Style
    judge: Judge
    settings: tuple[Setting, ...]

    @property
    def label(self) -> str:
        """The method as the paper writes it."""
        return display_name(self.name)

    @cached_property
    def chosen(self) -> Setting:
        """The setting to show."""
        return self.best(self.judge)

    @property
    def runs(self) -> tuple[RunData, ...]:
        """The seeds of the chosen setting that count; all of them as long as none does."""
        return self.chosen.counted or self.chosen.runs

    def best(self, judge: Judge) -> Setting:
        """The best setting by validation or by test data; the first one among equals."""
        return self.best_among(self.settings, judge)

    def best_among(self, settings: Sequence[Setting], judge: Judge) -> Setting:
        """The same among some of its settings."""
        begun = [setting for setting in settings if setting.seeds] or settings
        return best_on_shared_seeds(begun, lambda setting: setting.score(judge))


@dataclass(frozen=True)
class Problem:
    """Runs that may be compared with each other, by method in the order of the table."""

    title: str
    config: Mapping[str, Any]
    judge: Judge
    entries: tuple[Entry, ...]

    def entry(self, name: str) -> Entry | None:
        """The entry of a method, if it was run."""
        return next((e for e in self.entries if e.name == name), None)


def group(runs: Iterable[RunData], judge: Judge | None = None) -> list[Problem]:
    """The problems of ``runs`` in the order they first appear, judged as they can be or are told.

    ``judge="test"`` chooses as the paper does, also where validation data could choose.
    """
    by_problem: dict[str, list[RunData]] = defaultdict(list)
    for run in runs:
        by_problem[fingerprint(problem_of(run.config))].append(run)
    looks = styles(run.name for members in by_problem.values() for run in members)
    configs = [problem_of(members[0].config) for members in by_problem.values()]
    return [
        Problem(_title(config, configs), config, chosen, _entries(members, chosen, looks))
        for config, members in zip(configs, by_problem.values(), strict=True)
        for chosen in (judge or _judge(members),)
    ]


def _entries(runs: list[RunData], judge: Judge, looks: Mapping[str, Style]) -> tuple[Entry, ...]:
    by_name: dict[str, list[RunData]] = defaultdict(list)
    for run in runs:
        by_name[run.name].append(run)
    return tuple(Entry(n, looks[n], judge, _settings(by_name[n])) for n in in_order(by_name))


def _judge(runs: list[RunData]) -> Judge:
    scored = [run for run in runs if len(run.evaluations)]
    validated = scored and all("validation_mean" in run.evaluations for run in scored)
    return "validation" if validated else "test"


def _settings(runs: list[RunData]) -> tuple[Setting, ...]:
    """Group by everything but the seed; of a seed run twice the longer run counts."""
    by_config: dict[str, dict[int, RunData]] = defaultdict(dict)
    for run in runs:
        seeds = by_config[fingerprint(_setting_config(run.config))]
        known = seeds.get(run.seed)
        if known is None or run.last_round > known.last_round:
            seeds[run.seed] = run
    groups = [[seeds[seed] for seed in sorted(seeds)] for seeds in by_config.values()]
    return tuple(Setting(_setting_config(members[0].config), tuple(members)) for members in groups)


def _title(config: Mapping[str, Any], others: list[dict[str, Any]]) -> str:
    """Data set and model as in the paper's table heads, and what else tells them apart."""
    names = f"{problem_name(config['dataset'])} & {problem_name(config['model'])}"
    return names + tail(config, others)


def _setting_config(config: Mapping[str, Any]) -> dict[str, Any]:
    return flatten({key: value for key, value in config.items() if key not in _NOT_SETTING})
