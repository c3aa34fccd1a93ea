"""``fedcraft report``, ``table``, ``verify`` and ``methods``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedcraft.cli.console import Code, Json, Quiet, out_console, print_json
from fedcraft.cli.outcome import Baseline, will_draw
from fedcraft.cli.tables import print_table
from fedcraft.errors import ConfigError

if TYPE_CHECKING:
    from fedcraft.runs.verify import Damage

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN_OR_FOLDER...", help="Run directories or their folders.")
]


def report(
    runs: Runs,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The page to write.", dir_okay=False)
    ] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Also write the figures to this folder.")
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", "-f", help="Of the figures: png, pdf, svg; may be repeated."),
    ] = None,
    baseline: Baseline = None,
    quiet: Quiet = False,
) -> None:
    """Write one self-contained HTML page about runs, also about runs that are still in progress.

    Examples:

    * `fedcraft report runs/compare -o page.html`
    * `fedcraft report runs/a runs/b --figures figures --format pdf`
    """
    from fedcraft.config.paths import at_home
    from fedcraft.report import write_figures, write_page
    from fedcraft.runs import find_runs

    will_draw(True, quiet)
    if formats and figures is None:
        raise ConfigError("--format applies to the figures: also name their folder with --figures")
    found = find_runs(runs)
    console = out_console(quiet=quiet)
    if figures is not None:
        folder = at_home(figures)
        written = write_figures(found, folder, **({"formats": formats} if formats else {}))
        console.print(f"Figures: {len(written)} files in {folder}")
    console.print(f"Report: {write_page(found, at_home(out), baseline)}")


def table(
    runs: Runs,
    format: Annotated[
        Literal["md", "latex", "csv"], typer.Option("--format", "-f", help="Format of the table.")
    ] = "md",
    baseline: Baseline = None,
    intervals: Annotated[
        bool, typer.Option("--intervals/--no-intervals", help="Show the 95 % intervals.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Print the paper's table for runs, with 95 % intervals and differences to a baseline.

    A number is bold only if the interval says that it is better than all others.

    Examples:

    * `fedcraft table runs/compare --format latex --no-intervals`
    * `fedcraft table runs/compare --baseline fedavgm`
    """
    from fedcraft.report.render import render
    from fedcraft.runs import find_runs
    from fedcraft.runs.select import group
    from fedcraft.runs.summary import rows

    found = rows(group(find_runs(runs)), baseline)
    if as_json:
        print_json(found)
    else:
        typer.echo(render(found, format, intervals=intervals), nl=False)


def verify(
    runs: Runs,
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept all files in their present state.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check every file of runs against the checksums that were written with it.

    The exit code is 0 if all runs are intact and 1 if one is damaged. A run that was killed may end
    in rows that were never confirmed; that is not damage, and `fedcraft resume` writes them again.

    Examples:

    * `fedcraft verify runs`
    * `fedcraft verify runs/mine --accept` after you changed a file on purpose
    """
    from fedcraft.config.paths import at_home
    from fedcraft.runs import verify as checks

    found = {path for run in runs for path in checks.run_directories(at_home(run))}
    for path in found if accept else ():
        checks.accept(path)
    damage = {path: checks.check(path) for path in sorted(found)}
    if as_json:
        print_json({str(path): [d._asdict() for d in damages] for path, damages in damage.items()})
    else:
        for path, damages in damage.items():
            out_console().print(f"{path}: {_verdict(path, damages)}")
    if any(damage.values()):
        raise typer.Exit(Code.FAILED)


def _verdict(path: Path, damages: Sequence[Damage]) -> str:
    from fedcraft.runs.verify import is_sealed, unconfirmed

    if damages:
        return "damaged: " + "; ".join(f"{file} {problem}" for file, problem in damages)
    if not is_sealed(path):
        return "no checksums: it has not started, or an early version wrote it"
    tails = unconfirmed(path)
    listed = ", ".join(f"{size} bytes of {name}" for name, size in tails.items())
    return f"intact; not confirmed: {listed}" if tails else "intact"


def methods(as_json: Json = False) -> None:
    """List the methods: what clients do, how updates are combined, what the server does."""
    from fedcraft.methods import methods as known

    rows = [
        {
            "name": row.name,
            "clients": str(row.local),
            "aggregation": str(row.aggregator),
            "server": str(row.server),
            "about": row.summary,
            "source": row.reference,
            "in_paper": row.in_paper,
        }
        for row in known()
    ]
    parts = [" · ".join(str(row[h]) for h in ("clients", "aggregation", "server")) for row in rows]
    cells = [[str(r["name"]), str(r["about"]), p] for r, p in zip(rows, parts, strict=True)]
    heads = ["name", "what it does", "clients · aggregation · server"]
    print_table(heads, cells, data=rows if as_json else None)
