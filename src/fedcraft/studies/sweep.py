"""Many runs: finished ones are skipped, interrupted ones resumed, failures collected."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcraft.config.paths import at_home
from fedcraft.config.schema import MACHINE_KEYS, Config
from fedcraft.config.settings import usable_cores
from fedcraft.config.toml import CONFIG_FILE
from fedcraft.errors import BusyError, ConfigError, DataError
from fedcraft.runs.lock import is_free
from fedcraft.runs.problems import problem_of, tail
from fedcraft.runs.reader import Result, load_pandas
from fedcraft.runs.select import Judge, Setting, best, by_problem, can_validate, row
from fedcraft.studies.plan import Plan, run_id
from fedcraft.studies.run import place
from fedcraft.studies.runner import Runner, RunOutcome, run_all, run_here, terminable

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Observer", "SweepResult", "cores", "repeat_best", "sweep"]

_BUSY_POLL = 1.0  # seconds between two looks at a run that another process is doing


class Observer:
    """Told what happens in a sweep; does nothing itself. The command line draws a bar with it."""

    def planned(self, results: Sequence[Result], waiting: int) -> None:
        """Called once: all runs of the sweep, and how many of them are not done yet."""

    def progress(self, directory: Path, record: Mapping[str, Any]) -> None:
        """Called now and then while a run goes on, with ``round``."""

    def ended(self, directory: Path, error: str) -> None:
        """Called when a run has ended; ``error`` is empty if it went well."""


@dataclass(frozen=True)
class SweepResult:
    """The runs of a sweep, what failed, and which run speaks for each method.

    ``problem`` names the problem of the runs where a sweep has several of them.
    """

    folder: Path
    runs: tuple[Result, ...]
    failures: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def done(self) -> tuple[Result, ...]:
        """The runs that have come to their end."""
        return tuple(run for run in self.runs if run.done)

    @property
    def judges(self) -> tuple[Judge, ...]:
        """How a run can be chosen: on test data always, on validation data where there are some."""
        some = any(map(can_validate, by_problem(self.runs)))
        return ("validation", "test") if some else ("test",)

    def problems(self) -> list[SweepResult]:
        """Return the sweep problem by problem: methods compare on one and the same."""
        groups = by_problem(self.runs)
        if len(groups) < 2:
            return [self]
        about = [problem_of(runs[0].config.values()) for runs in groups]
        names = [f"{one['dataset']} & {one['model']}{tail(one, about)}" for one in about]
        return [
            SweepResult(self.folder, tuple(runs), self.failures, name)
            for name, runs in zip(names, groups, strict=True)
        ]

    def best(self, judge: Judge | None = None) -> dict[str, Setting]:
        """Return the best setting of each method, by validation data if there are some.

        Where the sweep has several problems, a method has one on each: ``craft on PROBLEM``.
        """
        return {
            f"{setting.method} on {part.problem}" if part.problem else setting.method: setting
            for part in self.problems()
            for setting in best(part.done, part._judge(judge))
        }

    def rows(self, judge: Judge | None = None) -> list[dict[str, Any]]:
        """Return the paper's table, one dictionary per method; they say which problem if several.

        A problem without validation data is judged on test data, and says so.
        """
        return [
            ({"problem": part.problem} if part.problem else {}) | row(setting, part._judge(judge))
            for part in self.problems()
            for setting in part.best(judge).values()
        ]

    def table(self, judge: Judge | None = None) -> pd.DataFrame:
        """Return the paper's table: mean, best10, worst10, std, conflicts per round, rates."""
        frame: pd.DataFrame = load_pandas().DataFrame(self.rows(judge))
        return frame

    def clients(self) -> pd.DataFrame:
        """Return the per-client tables of all runs, with the columns run and method."""
        tables = [
            run.clients().assign(run=run.directory.name, method=run.method) for run in self.done
        ]
        if not tables:
            raise DataError(
                f"{self.folder}: none of its {len(self.runs)} runs has come to its end, so there "
                "is no table of clients; failures says why"
            )
        frame: pd.DataFrame = load_pandas().concat(tables, ignore_index=True)
        return frame

    def _judge(self, wanted: Judge | None) -> Judge:
        return wanted if wanted in self.judges else self.judges[0]


def sweep(
    plan: Plan | Mapping[str, Any] | str | Path,
    *,
    out: str | Path | None = None,
    jobs: int = 0,
    observer: Observer | None = None,
    runner: Runner = run_all,
) -> SweepResult:
    """Do every run of ``plan`` in local processes, ``jobs`` at once (one per core if 0).

    Each run has a process with one torch thread and the serial executor: the best use of a few
    cores. A run's folder is named after its configuration, so calling again does what is missing
    and nothing twice, also after a crash or ``kill -9``, also from two terminals at once.
    ``runner`` can do the runs elsewhere: see :func:`fedcraft.cluster.sweep`. Runs with Python
    objects in their configuration are done in this process, one after the other.
    """
    planned = _plan(plan)
    folder = _folder(at_home("runs/sweep" if out is None else out))
    configs = _for_one_process(planned.configs())
    results = [_place(folder, config) for config in configs]
    objects = {run.directory: c.objects for run, c in zip(results, configs, strict=True)}
    if any(objects.values()):  # which no other process has
        runner = run_here(objects)
    watcher = observer or Observer()
    waiting = [result.directory for result in results if not result.done]
    watcher.planned(results, len(waiting))
    with terminable():
        failures = _work(waiting, jobs or cores(), watcher, runner)
    fresh = tuple(Result(result.directory) for result in results)
    return SweepResult(folder, fresh, failures)


def repeat_best(
    result: SweepResult,
    seeds: Sequence[int],
    *,
    plan: Plan | None = None,
    jobs: int = 0,
    observer: Observer | None = None,
) -> SweepResult:
    """Run the best setting of each method again for more ``seeds``, and return all the runs.

    One seed is enough to choose by and too little to report: at high rates the last bit of a sum
    can move a final accuracy by several hundredths. ``plan`` is that of the first runs; it has the
    Python objects that they need.
    """
    chosen = [s for judge in result.judges for s in result.best(judge).values()]
    planned = {run_id(c): c for c in _for_one_process(plan.configs() if plan else [])}
    firsts = [setting.runs[0] for setting in chosen]
    configs = [planned.get(run.directory.name, run.config) for run in firsts]
    variants = [{k: v for k, v in config.given().items() if k != "seed"} for config in configs]
    if not seeds or not variants:
        return result
    repetitions = Plan({}, {"seed": list(seeds)}, variants, "repetitions")
    more = sweep(repetitions, out=result.folder, jobs=jobs, observer=observer)
    runs = {run.directory: run for run in (*result.runs, *more.runs)}
    tried_again = {run.directory.name for run in more.runs}
    failures = {name: why for name, why in result.failures.items() if name not in tried_again}
    return SweepResult(result.folder, tuple(runs.values()), failures | dict(more.failures))


def cores() -> int:
    """Return how many cores this process may use."""
    return usable_cores()


def _plan(given: Plan | Mapping[str, Any] | str | Path) -> Plan:
    if isinstance(given, Plan):
        return given
    return Plan.of(given) if isinstance(given, Mapping) else Plan.read(given)


def _for_one_process(configs: Sequence[Config]) -> list[Config]:
    """Let each run have a single worker; ``vectorized`` is one already and stays."""
    kept = ("serial", "vectorized")
    return [
        config.but(workers=1, executor=config.executor if config.executor in kept else "serial")
        for config in configs
    ]


def _folder(wanted: Path) -> Path:
    if (wanted / CONFIG_FILE).exists():
        raise ConfigError(
            f"out: expected a folder for runs, but {wanted} is a run itself; choose another"
        )
    return wanted


def _place(folder: Path, config: Config) -> Result:
    """Return the run's directory, with its configuration in it from the first moment on."""
    directory = folder / run_id(config)
    while not (directory / CONFIG_FILE).exists():
        with suppress(BusyError):  # another sweep is placing the same run
            place(config, directory)
    result = Result(directory)
    if run_id(result.config) != directory.name:
        raise ConfigError(_no_longer(result, config))
    return result


def _no_longer(result: Result, planned: Config) -> str:
    """Say why a folder is not the run that its name stands for."""
    found, wanted = result.config.values(), planned.values()
    changed = [
        f"{key} is {found.get(key)!r} instead of {wanted.get(key)!r}"
        for key in {**wanted, **found}
        if key not in MACHINE_KEYS and found.get(key) != wanted.get(key)
    ]
    return (
        f"{result.directory}: its {CONFIG_FILE} is no longer that of the run in this sweep: "
        f"{', '.join(changed)}. Move the folder out of {result.directory.parent}, and the same "
        "command does the run anew"
    )


def _work(directories: list[Path], jobs: int, watcher: Observer, runner: Runner) -> dict[str, str]:
    failures: dict[str, str] = {}
    while directories:
        outcomes = runner(directories, jobs, watcher.progress, _ended(watcher))
        failures |= {o.directory.name: o.error for o in outcomes if o.error and not o.busy}
        directories = [o.directory for o in outcomes if o.busy]
        while directories and not any(map(is_free, directories)):
            time.sleep(_BUSY_POLL)
    return failures


def _ended(watcher: Observer) -> Callable[[RunOutcome], None]:
    def tell(outcome: RunOutcome) -> None:
        if not outcome.busy:
            watcher.ended(outcome.directory, outcome.error)

    return tell
