"""``fedcraft run``, ``resume`` and ``bench``: one run at a time."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from fedcraft.cli.console import Json, Quiet, error_console, out_console, print_json
from fedcraft.cli.outcome import print_scores
from fedcraft.cli.tables import print_table
from fedcraft.cli.words import argument, source_and_overrides

Words = Annotated[
    list[str] | None,
    argument(
        "[CONFIG.toml] [KEY=VALUE]...", "A TOML file or an earlier run directory, then overrides."
    ),
]


def run(
    words: Words = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run directory; new under runs/ if left out.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train one method and write a run directory.

    Examples:

    * `fedcraft run` trains CRAFT on handwritten digits
    * `fedcraft run method=fedavg rounds=200 client_lr=0.1`
    * `fedcraft run mine.toml seed=3 --out runs/mine-3`
    * `fedcraft run dataset=cifar10 model=resnet20 aggregator.constraint=at_least`
    * `fedcraft run runs/mine-3/config.toml` repeats a run bit for bit
    """
    from fedcraft.config.toml import COMMAND_LINE, load_config
    from fedcraft.engine import progress
    from fedcraft.studies.run import run as train

    config = load_config(*source_and_overrides(words), override=COMMAND_LINE)
    watch = progress("quiet" if quiet else "auto")
    _show(train(config, out=out, callbacks=(watch,)), quiet, as_json)


def resume(
    directory: Annotated[Path, typer.Argument(help="The run directory.", exists=True)],
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Train further, to this many rounds.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Finish an interrupted run, or train a finished one further.

    The run continues from its last checkpoint, to the same bits as if it had never stopped. If it
    is trained further, it keeps the evaluation at its old end, even between two evaluations.

    Examples:

    * `fedcraft resume runs/craft-1f2e3d4c5b`
    * `fedcraft resume runs/craft-1f2e3d4c5b --rounds 1000`
    """
    from fedcraft.engine import progress
    from fedcraft.studies.run import resume as go_on

    watch = progress("quiet" if quiet else "auto")
    _show(go_on(directory, rounds=rounds, callbacks=(watch,)), quiet, as_json)


def bench(words: Words = None, as_json: Json = False) -> None:
    """Measure the time of a round by phase on this machine, with each executor.

    Examples:

    * `fedcraft bench` times 20 rounds of CRAFT on digits
    * `fedcraft bench dataset=femnist rounds=50`
    """
    from fedcraft.config.toml import COMMAND_LINE, load_config
    from fedcraft.studies.profile import bench as measure

    source, overrides = source_and_overrides(words)
    short = {"rounds": 20, "evaluate_every": 10} | overrides
    rows = measure(load_config(source, short, override=COMMAND_LINE))
    names = [key for key in rows[0] if key not in ("executor", "workers", "peak_memory_mb")]
    heads = ["executor", "workers", *names, "MiB"]
    cells = []
    for row in rows:
        times = [f"{1000 * row[name]:.1f}" for name in names]
        cells.append([row["executor"], str(row["workers"]), *times, f"{row['peak_memory_mb']:.0f}"])
    title = "Milliseconds per round; evaluate: per evaluation; start: once"
    print_table(heads, cells, title, data=rows if as_json else None)


def _show(result: Any, quiet: bool, as_json: bool) -> None:
    from fedcraft.runs.select import group
    from fedcraft.runs.summary import rows
    from fedcraft.studies.tracking import viewing_command

    (summary,) = rows(group([result], "test"))
    if as_json:
        state = {"directory": str(result.directory), "state": result.state}
        print_json(state | summary | {"evaluation": dict(result.evaluation)})
        return
    console = out_console(quiet=quiet)
    rounds = result.status.get("round", 0)
    print_scores([summary], f"{result.config.dataset}, {rounds} rounds", console)
    note = error_console(quiet=quiet)
    note.print(f"{result.state}: {result.directory}")
    command = viewing_command(result.config, result.directory)
    if command:
        note.print(f"What was logged:  {command}")
    note.print(f"A page with figures:  fedcraft report {quote(str(result.directory))}")
