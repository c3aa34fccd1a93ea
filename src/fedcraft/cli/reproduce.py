"""``fedcraft reproduce``: the paper's tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedcraft.cli.complete import complete_experiment
from fedcraft.cli.console import Json, Quiet, error_console, out_console, print_json
from fedcraft.cli.outcome import (
    Estimate,
    Jobs,
    as_data,
    print_estimate,
    print_scores,
    report_failures,
    stop_without_runs,
    sweep_bar,
    will_draw,
)
from fedcraft.cli.tables import print_attacks, print_table
from fedcraft.cli.words import argument
from fedcraft.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from fedcraft.studies.reproduce import Reproduction

Name = Annotated[
    str | None,
    typer.Argument(help="The experiment; none lists them.", autocompletion=complete_experiment),
]
Words = Annotated[
    list[str] | None, argument("[KEY=VALUE]...", "Overrides of every run, with --rerun.")
]
Size = Annotated[
    Literal["tiny", "small", "paper"] | None,
    typer.Option("--scale", help="Train again at this scale (paper if only --rerun is given)."),
]
Rerun = Annotated[bool, typer.Option("--rerun", help="Train from scratch.")]
Missing = Annotated[
    bool,
    typer.Option(
        "--missing",
        help="Train only the runs that are not stored yet. Stored ones are kept, also those of an "
        "older version.",
    ),
]
Only = Annotated[
    list[str] | None, typer.Option("--method", "-m", help="Only this method; may be repeated.")
]
Results = Annotated[Path | None, typer.Option("--results", help="Folder of the stored results.")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Where the runs, figures and tables go.")
]
Store = Annotated[
    bool,
    typer.Option(
        "--store",
        help="Also keep the new runs, trimmed, in results/NAME; smaller scales need --results.",
    ),
]


def reproduce(
    name: Name = None,
    words: Words = None,
    scale: Size = None,
    rerun: Rerun = False,
    missing: Missing = False,
    method: Only = None,
    results: Results = None,
    out: Out = None,
    store: Store = False,
    jobs: Jobs = 0,
    estimate: Estimate = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Reproduce a table of the paper, with its figures and the paper's numbers beside ours.

    From the stored results this takes seconds; `--rerun` or `--scale` train from scratch.

    Examples:

    * `fedcraft reproduce` lists the experiments
    * `fedcraft reproduce table-femnist`
    * `fedcraft reproduce table-femnist --scale tiny`
    * `fedcraft reproduce table-cifar10-cnn --rerun --estimate`
    * `fedcraft reproduce robustness --missing --store`
    """
    from fedcraft.config.paths import at_home, new_folder
    from fedcraft.config.toml import COMMAND_LINE, parse_overrides
    from fedcraft.studies.presets import preset
    from fedcraft.studies.reproduce import from_results, stored_runs
    from fedcraft.studies.reproduce import rerun as train
    from fedcraft.studies.results import collect
    from fedcraft.studies.sweep import left_to_do

    if name is None:
        _list_experiments(as_json)
        return
    changes, methods = parse_overrides(words or []), method or ()
    _refuse_other_methods(changes)
    out, results = out and new_folder(out), results and at_home(results)
    if not (rerun or missing or scale or estimate):
        _refuse_to_train(changes, store)
        made = from_results(name, results, methods)
        folder = out or Path("runs") / name
        finish_reproduction(made, folder, quiet, as_json, will_draw(None, quiet))
        return
    size = scale or "paper"
    if store and results is None:
        _refuse_to_store(name, size)
    plan = preset(name).plan(size, methods, COMMAND_LINE, **changes)
    known = stored_runs(name, results) if missing else ()
    planned, left = len(plan.configs()), left_to_do(plan, known)
    if missing:
        error_console(quiet=quiet).print(
            f"{planned - len(left)} of {planned} runs are stored and kept, whichever version of "
            "fedcraft made them; --rerun alone repeats them"
        )
    if estimate or not (quiet or as_json):
        print_estimate(left, jobs, as_json and estimate, len(preset(name).repeats_of(plan)))
    if estimate:
        return
    draw, folder = will_draw(None, quiet), out or Path("runs") / f"{name}-{size}"
    given: dict[str, Any] = {"methods": methods, "overrides": changes, "override": COMMAND_LINE}
    with sweep_bar(quiet or as_json) as bar:
        made = train(name, size, **given, out=folder, jobs=jobs, observer=bar, known=known)
    if store and made.result.done:
        collect(made.result.runs, (results or Path("results")) / name)
    finish_reproduction(made, folder, quiet, as_json, draw)


def _refuse_other_methods(changes: Mapping[str, Any]) -> None:
    for key in changes:
        if key.partition(".")[0] in ("method", "grid"):
            raise ConfigError(
                f"command line: {key}: an experiment has its own methods and its own grid. Keep "
                "some of its methods with --method NAME, or use fedcraft compare"
            )


def _refuse_to_store(name: str, size: str) -> None:
    if size != "paper":
        raise ConfigError(
            f"--store: results/{name} is for runs at the scale paper, but --scale is {size}. "
            "Name another folder with --results"
        )


def _refuse_to_train(changes: Mapping[str, Any], store: bool) -> None:
    """Refuse options that stored results cannot honour, rather than ignore them."""
    asked = [*(f"{key}={value}" for key, value in changes.items()), *(["--store"] if store else [])]
    if asked:
        raise ConfigError(
            f"command line: {' '.join(asked)} asks for new runs, but without --rerun, --missing or "
            "--scale the stored results are only read. Add one of them"
        )


def finish_reproduction(
    made: Reproduction, folder: Path, quiet: bool, as_json: bool, draw: bool = True
) -> None:
    """Print the table, write the files, and print where they are and what failed."""
    from fedcraft.studies.published import published_rows

    stop_without_runs(made.result)
    console = out_console(quiet=quiet or as_json)
    _print_table(made, console)
    if not made.result.runs:
        _print_nothing_stored(made, console, as_json)
        return
    folder.mkdir(parents=True, exist_ok=True)
    reference = published_rows(made.preset.published) if made.preset.published else []
    table = _write_tables(made, folder, reference)
    pictures = _draw(made, folder, reference) if draw else {}
    files = {"table": str(table), **pictures}
    console.print(f"Tables: {table}")
    if pictures:
        console.print(f"Report: {pictures['report']}\nFigures: {folder / 'figures'}")
    if as_json:
        scores = {"table": made.rows(), "rank_correlation": made.rank_correlation()}
        if made.attacks:
            scores["attacks"] = [asdict(row) for row in made.attacks]
        print_json(as_data(made.result) | scores | {"files": files})
    report_failures(made.result)


def _print_nothing_stored(made: Reproduction, console: Console, as_json: bool) -> None:
    name = made.preset.name
    console.print(
        f"No runs of {name} are stored. Train from scratch with fedcraft reproduce {name} --rerun "
        "(--estimate tells how long), or at a smaller scale with --scale small"
    )
    if as_json:
        print_json({"table": made.rows(), "runs": {}})


def _draw(made: Reproduction, folder: Path, reference: list[dict[str, Any]]) -> dict[str, Any]:
    from fedcraft.report import write_figures, write_page

    page = write_page(made.result.runs, folder / "report.html", reference=reference)
    figures = write_figures(made.result.runs, folder / "figures")
    return {"report": str(page), "figures": [str(figure) for figure in figures]}


def _print_table(made: Reproduction, console: Console) -> None:
    if made.attacks:
        if not console.quiet:
            print_attacks(made.attacks, made.title)
        return
    short = (made.borrowed or made.preset.published is not None) and not made.whole
    print_scores(made.rows(), made.title, console, show_rounds=short)
    correlation = made.rank_correlation()
    if correlation is not None:
        console.print(f"Rank correlation with the paper's means: {correlation:.2f}")


def _write_tables(made: Reproduction, folder: Path, reference: list[dict[str, Any]]) -> Path:
    """Write the table with the paper's numbers beside it as Markdown, LaTeX and CSV.

    Rates are chosen on test data, as in the paper and on the terminal.
    """
    from fedcraft.report.render import render

    table = made.result.rows("test")
    for kind, suffix in (("md", "md"), ("latex", "tex"), ("csv", "csv")):
        text = render(table, kind, reference or None)
        (folder / f"table.{suffix}").write_text(text, encoding="utf-8")
    return folder / "table.md"


def _list_experiments(as_json: bool) -> None:
    from fedcraft.studies.presets import presets

    cells = [[item.name, item.about, item.size] for item in presets().values()]
    keys = ("name", "about", "runs", "repeats")
    rows = [(item.name, item.about, *item.counts) for item in presets().values()]
    data = [dict(zip(keys, row, strict=True)) for row in rows] if as_json else None
    print_table(["name", "what it is", "runs"], cells, data=data)
