"""``fedcraft compare``, ``sweep`` and ``reproduce``: many runs, a table, a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from fedcraft.cli.complete import complete_experiment, complete_method, complete_override
from fedcraft.cli.console import Code, Json, Quiet, error_console, out_console, print_json
from fedcraft.cli.tables import plain_table, score_table

if TYPE_CHECKING:
    from fedcraft.cli.progress import SweepBar
    from fedcraft.experiments.reproduce import Reproduction
    from fedcraft.experiments.sweep import SweepResult

__all__ = ["compare", "reproduce", "sweep"]

Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, help="Runs at once; 0: one per core.")]
Estimate = Annotated[
    bool, typer.Option("--estimate", help="Only say how long it would take and how much memory.")
]
Page = Annotated[bool, typer.Option("--report/--no-report", help="Write the HTML page.")]


def compare(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[METHOD]... [KEY=VALUE]...",
            help="Methods (FedAvg, FedAvgM, ConFIG and CRAFT if none is named) and overrides.",
            autocompletion=complete_method,
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="TOML file with the problem.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the runs.")] = Path(
        "runs/compare"
    ),
    jobs: Jobs = 0,
    page: Page = True,
    estimate: Estimate = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare methods on one problem, each at its best rates from the same small grid.

    The rates are chosen on the clients' validation parts and the table is made on their test parts.
    Without a word: four methods on scikit-learn's digits over 50 clients, in about a minute.

    Examples:

    * `fedcraft compare`
    * `fedcraft compare craft fedavg fedlf rounds=200`
    * `fedcraft compare craft fedavg client_lr=0.1 server_lr=0.1` (no grid: these rates)
    * `fedcraft compare craft fedavgm grid.server_lr=[0.1,0.3] dataset=femnist`
    """
    from fedcraft.experiments.compare import DEFAULT_METHODS, comparison_plan
    from fedcraft.experiments.files import parse_overrides
    from fedcraft.experiments.sweep import sweep as work

    given = words or []
    methods = [word for word in given if "=" not in word] or list(DEFAULT_METHODS)
    overrides = parse_overrides(word for word in given if "=" in word)
    plan = comparison_plan(methods, config, overrides=overrides)
    if estimate:
        _print_estimate(plan.configs(), jobs, as_json)
        return
    with _bar(quiet or as_json) as bar:
        result = work(plan, out=out, jobs=jobs, observer=bar)
    _finish(result, page=page, quiet=quiet, as_json=as_json)


def sweep(
    config: Annotated[Path, typer.Argument(help="TOML file with a [grid] table.", exists=True)],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Overrides; grid.key=[...] changes the grid.",
            autocompletion=complete_override,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the runs; runs/NAME if left out.")
    ] = None,
    jobs: Jobs = 0,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Do the runs on a Ray cluster: HOST:PORT, auto, or local. All nodes must see the "
            "folder of the runs.",
        ),
    ] = None,
    page: Page = True,
    estimate: Estimate = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run every point of a grid, several at once, and tell the best of each method.

    Finished runs are skipped and interrupted ones resumed, so the same command brings a sweep to
    its end whatever happened to it. A grid may hold any key, seeds included:

    * `[grid]`
    * `method = ["craft", "fedavg"]`
    * `client_lr = [0.01, 0.1]`
    * `seed = [1, 2, 3]`

    Examples:

    * `fedcraft sweep mine.toml --jobs 2`
    * `fedcraft sweep mine.toml --ray 10.0.0.1:6379 --out /shared/mine`
    """
    from fedcraft.experiments.files import parse_overrides
    from fedcraft.experiments.plan import Plan

    plan = Plan.read(config, parse_overrides(words or []))
    if estimate:
        _print_estimate(plan.configs(), jobs, as_json)
        return
    with _bar(quiet or as_json) as bar:
        work = _sweeper(ray)
        result = work(plan, out=out or Path("runs") / config.stem, jobs=jobs, observer=bar)
    _finish(result, page=page, quiet=quiet, as_json=as_json)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="The experiment; none lists them.", autocompletion=complete_experiment),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Overrides of every run, with --rerun.",
            autocompletion=complete_override,
        ),
    ] = None,
    scale: Annotated[
        Literal["tiny", "small", "paper"] | None,
        typer.Option("--scale", help="Train anew at this scale (paper if only --rerun is given)."),
    ] = None,
    rerun: Annotated[bool, typer.Option("--rerun", help="Train from scratch.")] = False,
    method: Annotated[
        list[str] | None, typer.Option("--method", "-m", help="Only this method; may be repeated.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option("--results", help="Folder of the stored results.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the runs, figures and tables go.")
    ] = None,
    jobs: Jobs = 0,
    estimate: Estimate = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make a table of the paper again, with its figures and its own numbers beside ours.

    From the stored results that takes seconds; `--rerun` or `--scale` train from scratch.

    Examples:

    * `fedcraft reproduce` lists the experiments
    * `fedcraft reproduce table-femnist`
    * `fedcraft reproduce table-femnist --scale tiny`
    * `fedcraft reproduce table-cifar10-cnn --rerun --estimate`
    """
    from fedcraft.experiments.files import parse_overrides
    from fedcraft.experiments.presets import preset, presets
    from fedcraft.experiments.reproduce import from_results
    from fedcraft.experiments.reproduce import rerun as train

    if name is None:
        _list_experiments(presets(), as_json)
        return
    if not (rerun or scale or estimate):
        stored = from_results(name, results)
        _finish_reproduction(stored, out or Path("runs") / name, quiet, as_json)
        return
    size, changes = scale or "paper", parse_overrides(words or [])
    plan = preset(name).plan(size, method or (), **changes)
    if estimate or not (quiet or as_json):
        _print_estimate(plan.configs(), jobs, as_json and estimate)
    if estimate:
        return
    folder = out or Path("runs") / f"{name}-{size}"
    with _bar(quiet or as_json) as bar:
        made = train(
            name, size, methods=method or (), out=folder, jobs=jobs, observer=bar, **changes
        )
    _finish_reproduction(made, folder, quiet, as_json)


def _sweeper(ray: str | None) -> Callable[..., SweepResult]:
    """Return what does a sweep: processes here, or a cluster."""
    if ray is None:
        from fedcraft.experiments.sweep import sweep as locally

        return locally
    from fedcraft.cluster import sweep as remotely

    return partial(remotely, address=ray)


@contextmanager
def _bar(quiet: bool) -> Iterator[SweepBar | None]:
    from fedcraft.cli.progress import SweepBar

    bar = SweepBar(error_console(quiet=quiet))
    try:
        yield bar
    except KeyboardInterrupt:
        bar.close()
        error_console().print("Interrupted; every run has a checkpoint. The same command goes on.")
        raise typer.Exit(Code.INTERRUPTED) from None
    finally:
        bar.close()


def _finish(result: SweepResult, *, page: bool, quiet: bool, as_json: bool) -> None:
    written = _write_page(result, result.folder) if page else None
    if as_json:
        print_json(_as_data(result) | {"report": str(written) if written else None})
    else:
        console = out_console(quiet=quiet)
        console.print(score_table(result.rows(), _title(result)))
        _explain_choice(result, console)
        if written:
            console.print(f"Report: {written}")
    _report_failures(result)


def _finish_reproduction(made: Reproduction, folder: Path, quiet: bool, as_json: bool) -> None:
    from fedcraft.report import load_runs, write_figures

    rows, correlation = made.rows(), made.rank_correlation()
    directories = [run.directory for run in made.result.runs]
    figures = write_figures(load_runs(directories), folder / "figures")
    page = _write_page(made.result, folder)
    table = _write_tables(made, folder)
    if as_json:
        files = {"report": str(page), "table": str(table), "figures": [str(f) for f in figures]}
        data = _as_data(made.result) | {"table": rows, "rank_correlation": correlation}
        print_json(data | {"files": files})
    else:
        console = out_console(quiet=quiet)
        console.print(score_table(rows, f"{made.preset.name}: {made.preset.about}"))
        if correlation is not None:
            console.print(f"Rank correlation with the paper's means: {correlation:.2f}")
        console.print(f"Report: {page}\nTables: {table}\nFigures: {folder / 'figures'}")
    _report_failures(made.result)


def _write_page(result: SweepResult, folder: Path) -> Path:
    from fedcraft.report import load_runs, write_page

    done = [run.directory for run in result.runs if run.done]
    return write_page(load_runs(done), folder / "report.html")


def _write_tables(made: Reproduction, folder: Path) -> Path:
    """Write the table with the paper's numbers beside it as Markdown, LaTeX and CSV."""
    from fedcraft.experiments.published import frame
    from fedcraft.report import load_runs, render, summary

    table = summary(load_runs([run.directory for run in made.result.runs]))
    reference = frame(made.preset.published) if made.preset.published else None
    for kind, suffix in (("md", "md"), ("latex", "tex"), ("csv", "csv")):
        text = render(table, kind, reference)
        (folder / f"table.{suffix}").write_text(text, encoding="utf-8")
    return folder / "table.md"


def _explain_choice(result: SweepResult, console: Console) -> None:
    if result.judges[0] == "test":
        console.print(
            "Rates chosen by mean test accuracy, as the paper does. For an honest choice set "
            "validation_fraction=0.2."
        )
        return
    console.print("Rates chosen on the clients' validation parts; numbers are on their test parts.")
    others = ", ".join(f"{row['method']} {row['mean']:.3f}" for row in result.rows("test"))
    console.print(f"Chosen on test data, as the paper does, the means would be: {others}")


def _title(result: SweepResult) -> str:
    config = result.runs[0].config
    return (
        f"{config.dataset} & {config.model}, {config.clients} clients, {config.clients_per_round} "
        f"per round, {config.rounds} rounds"
    )


def _as_data(result: SweepResult) -> dict[str, Any]:
    return {
        "folder": str(result.folder),
        "tables": {judge: result.rows(judge) for judge in result.judges},
        "runs": {run.directory.name: run.state for run in result.runs},
        "failures": dict(result.failures),
    }


def _report_failures(result: SweepResult) -> None:
    if not result.failures:
        return
    console = error_console()
    console.print(f"{len(result.failures)} of {len(result.runs)} runs failed:", style="bold red")
    for name, error in result.failures.items():
        console.print(f"  {name}: {error.splitlines()[0]}", markup=False)
    console.print(f"Details in {result.folder}/RUN/log.txt; the same command tries them again.")
    raise typer.Exit(Code.FAILED)


def _print_estimate(configs: list[Any], jobs: int, as_json: bool) -> None:
    from dataclasses import asdict

    from fedcraft.experiments.estimate import estimate
    from fedcraft.experiments.sweep import cores

    expected = estimate(configs, jobs or cores())
    if as_json:
        print_json(asdict(expected))
    else:
        error_console().print(str(expected))


def _list_experiments(known: dict[str, Any], as_json: bool) -> None:
    rows = [[item.name, item.about, str(len(item.plan().configs()))] for item in known.values()]
    if as_json:
        print_json([dict(zip(("name", "about", "runs"), row, strict=True)) for row in rows])
        return
    out_console().print(plain_table(["name", "what it is", "runs"], rows))
