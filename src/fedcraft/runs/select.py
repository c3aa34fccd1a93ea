"""The choice of the runs that represent a method: problems, settings, entries.

* A *problem* is a data set, its split into clients, and a model. Only its runs are compared.
* A *setting* is everything but the seed, the machine and the label: its runs are repetitions.
* An *entry* is one method (or label) in one problem, shown at its best setting. The paper takes the
  setting with the best mean test accuracy (Appendix C). Where every run of a problem that has been
  scored has a validation part, the choice is made on that part instead of the test data.

Everything that prints or draws numbers of several runs asks :func:`group`.
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fedcraft.config.schema import MACHINE_KEYS
from fedcraft.methods import method_title, methods
from fedcraft.metrics.intervals import Sample
from fedcraft.runs.problems import fingerprint, flatten, problem_of, title
from fedcraft.runs.run import Run

Judge = Literal["test", "validation"]
_SCORE = {"test": "mean", "validation": "validation_mean"}
_NOT_SETTING = MACHINE_KEYS | {"seed", "label"}


@dataclass(frozen=True)
class Setting:
    """The repetitions (seeds) of one configuration."""

    config: Mapping[str, Any]
    runs: tuple[Run, ...]

    @cached_property
    def counted(self) -> tuple[Run, ...]:
        """The runs that count: those with an evaluation, and those that diverged before one."""
        return tuple(run for run in self.runs if run.curve("mean") or run.diverged)

    @property
    def seeds(self) -> set[int]:
        """The seeds that count; the others are still to come."""
        return {run.seed for run in self.counted}

    @property
    def planned(self) -> int:
        """The rounds that its runs were planned for."""
        return int(self.config.get("rounds", 0))

    @property
    def rounds(self) -> int:
        """The round of its numbers; the earliest if seeds stopped at different rounds."""
        together = self._together("mean")
        reached = min(run.last_round for run in self.counted or self.runs)
        return reached if together is None else together

    @property
    def done(self) -> bool:
        """Whether every seed that counts has ended, also by a stop condition."""
        return all(run.done for run in self.counted)

    @property
    def diverged(self) -> int:
        """How many of its seeds ended in NaN or Inf."""
        return sum(run.diverged for run in self.runs)

    @property
    def state(self) -> str:
        """The least finished state among the seeds."""
        states = {run.state for run in self.runs}
        order = ("failed", "running", "interrupted", "new", "stopped", "finished")
        return next((state for state in order if state in states), min(states))

    @property
    def sound_mean(self) -> float:
        """The final mean; NaN if it diverged, whatever was measured before that."""
        return math.nan if self.diverged else self.final("mean")

    def on(self, seeds: set[int]) -> Setting:
        """Return the same setting with only the runs of these seeds."""
        return Setting(self.config, tuple(run for run in self.runs if run.seed in seeds))

    def shared(self, metric: str) -> dict[int, list[float]]:
        """Return ``metric`` of each seed at the rounds where all of them have been evaluated.

        Seeds that have not been evaluated yet are left out. There is no round at all if one
        diverged before it was evaluated: the others would make the setting look better than it is.
        """
        curves = [(run.curve(metric), run.diverged) for run in self.runs]
        counted = [curve for curve, diverged in curves if curve or diverged]
        rounds = set.intersection(*map(set, counted)) if counted else set()
        return {number: [curve[number] for curve in counted] for number in sorted(rounds)}

    def _together(self, metric: str) -> int | None:
        """Return the last round that all seeds share; None if each counts at its own end.

        That is so if all are done, and if they share no round: they were evaluated at their ends.
        """
        return None if self.done else max(self.shared(metric), default=None)

    def finals(self, metric: str) -> list[float]:
        """Return ``metric`` of each seed: at its end if all are done, else at equal rounds.

        There is no value at all if one diverged before it was evaluated.
        """
        together = self._together(metric)
        ends = [run.final(metric) for run in self.counted]
        values = ends if together is None else self.shared(metric)[together]
        return values if all(map(math.isfinite, values)) else []

    def final(self, metric: str) -> float:
        """Return the final value of ``metric``, averaged over the seeds; see :meth:`finals`."""
        values = self.finals(metric)
        return statistics.fmean(values) if values else math.nan

    def spread(self, metric: str) -> float:
        """Return the standard deviation of the final value over seeds; NaN for a single seed."""
        values = self.finals(metric)
        return statistics.stdev(values) if len(values) > 1 else math.nan

    @cached_property
    def samples(self) -> dict[int, Sample]:
        """The clients' accuracies behind :meth:`finals` by seed; none if a seed has none."""
        together = self._together("mean")
        found = {run.seed: _sample(run, together) for run in self.counted if run.curve("mean")}
        known = {seed: sample for seed, sample in found.items() if sample is not None}
        return known if len(known) == len(self.counted) else {}

    def conflicts(self, stage: str) -> float:
        """Return the clients per round in conflict at ``stage``: average, reference or after.

        Only rounds that all seeds have done count: conflicts change along a run.
        """
        runs = self.counted or self.runs
        done = min(run.last_round for run in runs)
        records = [record for run in runs for record in run.records if record["round"] <= done]
        counts = [(record.get("conflicts") or {}).get(stage) for record in records]
        known = [count for count in counts if count is not None]
        return statistics.fmean(known) if known else math.nan

    def merit(self, judge: Judge) -> tuple[bool, float, float, float]:
        """Return the key of the choice: the score, then the smaller rates.

        A setting that diverged or has no number never wins.
        """
        value = self.final(_SCORE[judge])
        sound = math.isfinite(value) and not self.diverged
        client, server = (float(self.config.get(k) or 0.0) for k in ("client_lr", "server_lr"))
        return sound, value if sound else 0.0, -client, -server


@dataclass(frozen=True)
class Entry:
    """One method (or label) in one problem: all its settings, and the one to show.

    ``peers`` are the names of all entries of all problems, in the order of tables.
    """

    name: str
    judge: Judge
    settings: tuple[Setting, ...]
    peers: tuple[str, ...]

    @property
    def label(self) -> str:
        """The method in the paper's spelling, or the custom label."""
        return method_title(self.name)

    @cached_property
    def chosen(self) -> Setting:
        """The setting to show."""
        return self.best(self.judge)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The seeds of the chosen setting that count; all of them as long as none does."""
        return self.chosen.counted or self.chosen.runs

    def best(self, judge: Judge) -> Setting:
        """Return the best setting by validation or by test data."""
        return self.best_among(self.settings, judge)

    def best_among(self, settings: Sequence[Setting], judge: Judge) -> Setting:
        """Return the best of some of its settings, among equals the one with the smaller rates.

        Settings that were planned for more rounds come first; shorter ones are only shown if all
        of those diverged.
        """
        begun = [setting for setting in settings if setting.seeds] or settings
        lengths = sorted({setting.planned for setting in begun}, reverse=True)
        winners = [_winner([s for s in begun if s.planned == n], judge) for n in lengths]
        return next((s for s in winners if math.isfinite(s.sound_mean)), winners[0])


@dataclass(frozen=True)
class Problem:
    """Runs that may be compared with each other, by method in the order of the table."""

    title: str
    config: Mapping[str, Any]
    judge: Judge
    entries: tuple[Entry, ...]

    def entry(self, name: str) -> Entry | None:
        """Return the entry of a method, if it was run."""
        return next((e for e in self.entries if e.name == name), None)


def group(runs: Iterable[Run], judge: Judge | None = None) -> list[Problem]:
    """Return the problems of ``runs`` in the order in which they first appear.

    ``judge="test"`` chooses as the paper does, also where validation data could choose;
    ``"validation"`` changes nothing where they cannot.
    """
    by_problem: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_problem[fingerprint(problem_of(run.values))].append(run)
    peers = tuple(in_order(run.method for members in by_problem.values() for run in members))
    configs = [problem_of(members[0].values) for members in by_problem.values()]
    return [
        Problem(title(config, configs), config, chosen, _entries(members, chosen, peers))
        for config, members in zip(configs, by_problem.values(), strict=True)
        for chosen in ("test" if judge == "test" else _judge(members),)
    ]


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names in the order of the table of methods, custom labels after them."""
    known = {row.name: place for place, row in enumerate(methods())}
    return sorted(set(names), key=lambda name: (known.get(name, len(known)), name))


def _sample(run: Run, number: int | None) -> Sample | None:
    """Return the accuracies of a run's clients after a round, by default after its last one.

    Runs over the same split have the same clients. A run without a hash of its split is compared as
    if its clients were other ones.
    """
    accuracies = run.accuracies(max(run.curve("mean")) if number is None else number)
    if not accuracies:
        return None
    names = zlib.crc32(np.array([*accuracies], np.int64).tobytes())
    clients = f"{run.split_hash or f'{run.method} {run.seed}'} {names}"
    return Sample(clients, np.array([*accuracies.values()]))


def _judge(runs: Sequence[Run]) -> Judge:
    scored = [run for run in runs if run.curve("mean")]
    validated = scored and all(run.curve(_SCORE["validation"]) for run in scored)
    return "validation" if validated else "test"


def _entries(runs: Sequence[Run], judge: Judge, peers: tuple[str, ...]) -> tuple[Entry, ...]:
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_name[run.method].append(run)
    return tuple(Entry(n, judge, _settings(by_name[n]), peers) for n in peers if n in by_name)


def _settings(runs: Sequence[Run]) -> tuple[Setting, ...]:
    """Group by everything but the seed; of a seed run twice the longer run counts."""
    by_config: dict[str, dict[int, Run]] = defaultdict(dict)
    configs: dict[str, dict[str, Any]] = {}
    for run in runs:
        config = flatten({k: v for k, v in run.values.items() if k not in _NOT_SETTING})
        key = fingerprint(config)
        configs[key] = config
        known = by_config[key].get(run.seed)
        if known is None or run.last_round > known.last_round:
            by_config[key][run.seed] = run
    return tuple(
        Setting(configs[key], tuple(seeds[seed] for seed in sorted(seeds)))
        for key, seeds in by_config.items()
    )


def _winner(settings: Sequence[Setting], judge: Judge) -> Setting:
    """Return the best setting on the seeds that all of them have.

    So a setting that was repeated with more seeds is compared with the others on the same seeds.
    """
    shared = set.intersection(*(setting.seeds for setting in settings))
    return max(settings, key=lambda s: (s.on(shared) if shared else s).merit(judge))
