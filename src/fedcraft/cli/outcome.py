"""The output of a study: its table, its page, its failures; and the estimate of its time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedcraft.cli.console import Code, error_console, out_console, print_json
from fedcraft.cli.tables import interval_table, score_table
from fedcraft.errors import MissingExtraError

if TYPE_CHECKING:
    from fedcraft.cli.progress import SweepBar
    from fedcraft.config.schema import Config
    from fedcraft.runs.select import Problem
    from fedcraft.studies.sweep import SweepResult

Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, help="Runs at once; 0: one per core.")]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        help="The method that the others are compared with.",
        show_default="fedavg",
    ),
]
Estimate = Annotated[bool, typer.Option("--estimate", help="Only estimate time and memory.")]
Page = Annotated[
    bool | None,
    typer.Option(
        "--report/--no-report",
        help="Write the HTML page, or not; if left out, where the extra report is installed.",
    ),
]


def will_draw(asked: bool | None, quiet: bool) -> bool:
    """Decide before any work whether there will be pictures, which need the extra report.

    Without it they are left out, with a note; one that was asked for is an error.
    """
    from fedcraft.report.extras import missing_package

    missing = None if asked is False else missing_package()
    if missing and asked:
        raise MissingExtraError(missing, "report")
    if missing:
        error_console(quiet=quiet).print(
            f"There will be no page and no figures, because {missing} is not installed: "
            "pip install 'fedcraft[report]'"
        )
    return asked is not False and not missing


@contextmanager
def sweep_bar(quiet: bool) -> Iterator[SweepBar]:
    """Show a bar during the runs; Ctrl-C leaves checkpoints."""
    from fedcraft.cli.progress import SweepBar

    bar = SweepBar(error_console(quiet=quiet))
    try:
        yield bar
    except KeyboardInterrupt:
        bar.close()
        error_console().print("Interrupted; every run has a checkpoint. Run the command again.")
        raise typer.Exit(Code.INTERRUPTED) from None
    finally:
        bar.close()


def finish(
    result: SweepResult, *, page: bool, quiet: bool, as_json: bool, baseline: str | None = None
) -> None:
    """Print the table of each problem of a sweep and where its page is, then what failed."""
    from fedcraft.runs.summary import rows

    stop_without_runs(result)
    written = None
    if page:
        from fedcraft.report import write_page  # which needs the extra

        written = write_page(result.runs, result.folder / "report.html", baseline)
    if as_json:
        print_json(as_data(result, baseline) | {"report": str(written) if written else None})
    else:
        console = out_console(quiet=quiet)
        for problem in result.problems():
            print_scores(rows([problem], baseline), _title(problem), console)
            _explain_choice(problem, console)
        if written:
            console.print(f"Report: {written}")
        _print_viewing_command(result, console)
    report_failures(result)


def _print_viewing_command(result: SweepResult, console: Console) -> None:
    from fedcraft.studies.tracking import viewing_command

    run = result.runs[0]
    kept_apart = run.config.tracking == "mlflow"  # TensorBoard looks into every run of a folder
    command = viewing_command(run.config, run.directory if kept_apart else result.folder)
    if command:
        console.print(f"What was logged{' of the first run' * kept_apart}:  {command}")


def stop_without_runs(result: SweepResult) -> None:
    """End here if there are only failures to show."""
    if not result.done:
        report_failures(result)


def print_scores(
    scores: Sequence[Mapping[str, Any]], title: str, console: Console, *, show_rounds: bool = False
) -> None:
    """Print the table of one problem's methods, and their intervals where these are known."""
    console.print(score_table(scores, title, show_rounds=show_rounds))
    intervals = interval_table(scores)
    if intervals is not None:
        console.print(intervals)


def _explain_choice(problem: Problem, console: Console) -> None:
    from fedcraft.runs.summary import rows

    if problem.judge == "test":
        console.print(
            "Rates chosen by mean test accuracy, as the paper does. For an honest choice set "
            "validation_fraction=0.2."
        )
        return
    shown = rows([problem])
    seeds = min(row["seeds"] for row in shown)
    repeated = f", over {seeds} seeds" if seeds > 1 else ""
    console.print(
        f"Rates chosen on the clients' validation parts; numbers are on their test parts{repeated}."
    )
    others = ", ".join(f"{row['method']} {row['mean_on_test']:.3f}" for row in shown)
    console.print(f"Chosen on test data, as the paper does, the means would be: {others}")


def _title(problem: Problem) -> str:
    clients, cohort = (problem.config.get(key, "?") for key in ("clients", "clients_per_round"))
    rounds = max(entry.chosen.rounds for entry in problem.entries)
    return f"{problem.title}, {clients} clients, {cohort} per round, {rounds} rounds"


def as_data(result: SweepResult, baseline: str | None = None) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "folder": str(result.folder),
        "tables": {judge: result.rows(judge, baseline) for judge in result.judges},
        "runs": {run.directory.name: run.state for run in result.runs},
        "failures": dict(result.failures),
    }


def report_failures(result: SweepResult) -> None:
    """Name the runs that failed, and exit with their code."""
    if not result.failures:
        return
    console = error_console()
    console.print(f"{len(result.failures)} of {len(result.runs)} runs failed:", style="bold red")
    names: dict[str, list[str]] = {}
    for name, error in result.failures.items():
        names.setdefault(error.splitlines()[0], []).append(name)
    for line, failed in names.items():
        more = f" and {len(failed) - 1} others" if len(failed) > 1 else ""
        console.print(f"  {failed[0]}{more}: {line}")
    console.print(f"Details in {result.folder}/RUN/log.txt; the same command tries them again.")
    raise typer.Exit(Code.FAILED)


def print_estimate(configs: Sequence[Config], jobs: int, as_json: bool, repeats: int = 0) -> None:
    """Print how long these runs will take."""
    from fedcraft.config.settings import usable_cores
    from fedcraft.studies.estimate import estimate

    expected = estimate(configs, jobs or usable_cores(), repeats)
    if as_json:
        print_json(asdict(expected))
    else:
        error_console().print(str(expected))
