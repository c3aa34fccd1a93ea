"""Many runs: finished ones are skipped, interrupted ones resumed, failures collected."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcraft.config.build import build_federation, build_model
from fedcraft.config.paths import new_folder
from fedcraft.config.schema import MACHINE_KEYS, Config
from fedcraft.config.settings import usable_cores
from fedcraft.config.toml import CONFIG_FILE, config_text
from fedcraft.errors import BusyError, ConfigError, DataError
from fedcraft.runs import Run
from fedcraft.runs.directory import place_config
from fedcraft.runs.lock import is_free
from fedcraft.runs.problems import fingerprint, problem_of
from fedcraft.runs.run import load_pandas
from fedcraft.runs.select import Judge, Problem, Setting, group
from fedcraft.runs.summary import rows
from fedcraft.studies.plan import Plan, run_id
from fedcraft.studies.runner import ChildPool, Runner, RunOutcome, run_here, terminable
from fedcraft.studies.tracking import require_tracking

if TYPE_CHECKING:
    import pandas as pd

_BUSY_POLL = 1.0  # seconds between two looks at a run that another process is doing


class Observer:
    """Receives the events of a sweep and ignores them; the command line draws a bar with it."""

    def planned(self, results: Sequence[Run], waiting: int) -> None:
        """Called once: all runs of the sweep, and how many of them are not done yet."""

    def progress(self, directory: Path, record: Mapping[str, Any]) -> None:
        """Called now and then during a run, with ``round``."""

    def ended(self, directory: Path, error: str) -> None:
        """Called when a run has ended; ``error`` is empty if it went well."""


@dataclass(frozen=True)
class SweepResult:
    """The runs of a sweep, what failed, and which run represents each method."""

    folder: Path
    runs: tuple[Run, ...]
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def done(self) -> tuple[Run, ...]:
        """The finished runs."""
        return tuple(run for run in self.runs if run.done)

    @property
    def judges(self) -> tuple[Judge, ...]:
        """How a run can be chosen: on test data always, on validation data where there are some."""
        some = any(problem.judge == "validation" for problem in self.problems())
        return ("validation", "test") if some else ("test",)

    def problems(self, judge: Judge | None = None) -> list[Problem]:
        """Return the runs problem by problem, method by method: see :mod:`fedcraft.runs.select`."""
        return group(self.runs, judge)

    def best(self, judge: Judge | None = None) -> dict[str, Setting]:
        """Return the best setting of each method, by validation data if there are some.

        Where the sweep has several problems, a method has one on each: ``craft on PROBLEM``.
        """
        problems = self.problems(judge)
        return {
            f"{entry.name} on {problem.title}" if len(problems) > 1 else entry.name: entry.chosen
            for problem in problems
            for entry in problem.entries
        }

    def rows(self, judge: Judge | None = None, baseline: str | None = None) -> list[dict[str, Any]]:
        """Return the paper's table, one dictionary per problem and method.

        A problem without validation data is judged on test data, and says so. Differences are to
        ``baseline``, FedAvg if none is named.
        """
        return rows(self.problems(judge), baseline)

    def table(self, judge: Judge | None = None, baseline: str | None = None) -> pd.DataFrame:
        """Return the paper's table: mean, best10, worst10, std, conflicts per round, rates."""
        frame: pd.DataFrame = load_pandas().DataFrame(self.rows(judge, baseline))
        return frame

    def clients(self) -> pd.DataFrame:
        """Return the per-client tables of all runs, with the columns run and method."""
        tables = [
            run.clients().assign(run=run.directory.name, method=run.method) for run in self.done
        ]
        if not tables:
            raise DataError(
                f"{self.folder}: none of its {len(self.runs)} runs has finished, so there "
                "is no table of clients; see failures"
            )
        frame: pd.DataFrame = load_pandas().concat(tables, ignore_index=True)
        return frame


def sweep(
    plan: Plan | Mapping[str, Any] | str | Path,
    *,
    out: str | Path | None = None,
    jobs: int = 0,
    observer: Observer | None = None,
    runner: Runner | None = None,
    known: Iterable[Run] = (),
) -> SweepResult:
    """Do every run of ``plan`` in local processes, ``jobs`` at once (one per core if 0).

    Each run has a process with one torch thread and the serial executor: the best use of a few
    cores. A run's folder is named after its configuration, so another call does only the missing
    runs, also after a crash or ``kill -9``, also from two terminals at once. Finished runs among
    ``known``, such as stored ones, are not done again either. ``runner`` can do the runs elsewhere:
    see :func:`fedcraft.cluster.sweep`. Runs with Python objects in their configuration are done in
    this process, one after the other.
    """
    folder = _folder(new_folder("runs/sweep" if out is None else out))
    configs = {run_id(config): config for config in _for_one_process(_plan(plan).configs())}
    finished = {run.directory.name: run for run in known if run.done}

    def found() -> tuple[Run, ...]:
        return tuple(finished.get(name) or Run(folder / name) for name in configs)

    if runner is None or isinstance(runner, ChildPool):  # a cluster may have other data
        _require_ready([configs[run.directory.name] for run in found() if not run.done])
    for name, config in configs.items():
        if name not in finished:
            _place(folder / name, config)
    objects = {folder / name: config.objects for name, config in configs.items()}
    if any(objects.values()):  # which no other process has
        runner = run_here(objects)
    watcher, placed = observer or Observer(), found()
    waiting = [run.directory for run in placed if not run.done]
    watcher.planned(placed, len(waiting))
    with terminable(), nullcontext(runner) if runner else ChildPool() as work:
        failures = _work(waiting, jobs or usable_cores(), watcher, work)
    return SweepResult(folder, found(), failures)


def carry_out(plan: Plan, seeds: Sequence[int], *, out: str | Path, **options: Any) -> SweepResult:
    """Do the runs of a plan, then the best of each method again for more ``seeds``.

    The same child processes do both; ``options`` are those of :func:`sweep`.
    """
    with ChildPool() as pool:
        result = sweep(plan, out=out, runner=pool, **options)
        return repeat_best(result, seeds, plan=plan, runner=pool, **options)


def repeat_best(
    result: SweepResult, seeds: Sequence[int], *, plan: Plan | None = None, **options: Any
) -> SweepResult:
    """Run the best setting of each method again for more ``seeds``, and return all the runs.

    One seed is enough to choose a setting and too little to report: at high rates the last bit of a
    sum can move a final accuracy by several hundredths. ``plan`` is that of the first runs; it has
    the Python objects that they need; ``options`` are those of :func:`sweep`.
    """
    chosen = [s for judge in result.judges for s in result.best(judge).values() if s.counted]
    planned = {run_id(c): c for c in _for_one_process(plan.configs() if plan else [])}
    firsts = [setting.runs[0] for setting in chosen]
    configs = [planned.get(run.directory.name, run.config) for run in firsts]
    variants = [{k: v for k, v in config.given().items() if k != "seed"} for config in configs]
    if not seeds or not variants:
        return result
    repetitions = Plan({}, {"seed": list(seeds)}, variants, "repetitions")
    more = sweep(repetitions, out=result.folder, **options)
    runs = {run.directory: run for run in (*result.runs, *more.runs)}
    tried_again = {run.directory.name for run in more.runs}
    failures = {name: why for name, why in result.failures.items() if name not in tried_again}
    return SweepResult(result.folder, tuple(runs.values()), failures | dict(more.failures))


def left_to_do(plan: Plan, known: Iterable[Run]) -> list[Config]:
    """Return the runs of a plan that are not finished among ``known``."""
    finished = {run.directory.name for run in known if run.done}
    return [c for c in _for_one_process(plan.configs()) if run_id(c) not in finished]


def _plan(given: Plan | Mapping[str, Any] | str | Path) -> Plan:
    if isinstance(given, Plan):
        return given
    return Plan.of(given) if isinstance(given, Mapping) else Plan.read(given)


def _for_one_process(configs: Sequence[Config]) -> list[Config]:
    """Let each run have a single worker; ``vectorized`` already has one and is kept."""
    kept = ("serial", "vectorized")
    return [
        config.but(workers=1, executor=config.executor if config.executor in kept else "serial")
        for config in configs
    ]


def _require_ready(configs: Sequence[Config]) -> None:
    """Build the data and the model of each problem once, so that what is wrong is reported once."""
    problems = {fingerprint(problem_of(config.values())): config for config in configs}
    for config in problems.values():
        require_tracking(config)
        build_model(config, build_federation(config).dataset)


def _folder(wanted: Path) -> Path:
    if (wanted / CONFIG_FILE).exists():
        raise ConfigError(
            f"out: expected a folder for runs, but {wanted} is a run itself; choose another"
        )
    return wanted


def _place(directory: Path, config: Config) -> None:
    """Write the configuration into the directory of its run, unless it is there."""
    while not (directory / CONFIG_FILE).exists():
        with suppress(BusyError):  # another sweep is placing the same run
            place_config(directory, config_text(config))
    result = Run(directory)
    if run_id(result.config) != directory.name:
        raise ConfigError(_no_longer(result, config))


def _no_longer(result: Run, planned: Config) -> str:
    """Explain why a folder is not the run that its name says."""
    found, wanted = result.config.values(), planned.values()
    changed = [
        f"{key} is {found.get(key)!r} instead of {wanted.get(key)!r}"
        for key in {**wanted, **found}
        if key not in MACHINE_KEYS and found.get(key) != wanted.get(key)
    ]
    return (
        f"{result.directory}: its {CONFIG_FILE} is no longer that of the run in this sweep: "
        f"{', '.join(changed)}. Move the folder out of {result.directory.parent}, and the same "
        "command does the run again"
    )


def _work(directories: list[Path], jobs: int, watcher: Observer, runner: Runner) -> dict[str, str]:
    failures: dict[str, str] = {}
    while directories:
        outcomes = runner(directories, jobs, watcher.progress, partial(_ended, watcher))
        failures |= {o.directory.name: o.error for o in outcomes if o.error and not o.busy}
        directories = [o.directory for o in outcomes if o.busy]
        while directories and not any(map(is_free, directories)):
            time.sleep(_BUSY_POLL)
    return failures


def _ended(watcher: Observer, outcome: RunOutcome) -> None:
    if not outcome.busy:
        watcher.ended(outcome.directory, outcome.error)
