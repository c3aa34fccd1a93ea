"""The commands and their groups."""

from __future__ import annotations

from typing import Annotated

import click
import typer

from fedcraft import __version__
from fedcraft.cli import configure, data, reproduce, run, show, study, watch
from fedcraft.cli.console import Group

app = typer.Typer(
    name="fedcraft",
    cls=Group,
    no_args_is_help=True,
    suggest_commands=not hasattr(click, "NoSuchCommand"),  # newer versions of click do it
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Conflict-resolved federated training: CRAFT, its rivals, and what each step does to
    every client.

    Start with `fedcraft compare`: five methods on handwritten digits, in about a minute.
    """,
    epilog="Exit codes: 0 all went well, 1 a run failed, 2 the configuration or the command is "
    "wrong, 130 interrupted (a checkpoint is saved).",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedcraft {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Options before the command."""


_TRAIN, _LOOK, _MORE = "Train", "Look at results", "More"
app.command("run", rich_help_panel=_TRAIN)(run.run)
app.command("resume", rich_help_panel=_TRAIN)(run.resume)
app.command("compare", rich_help_panel=_TRAIN)(study.compare)
app.command("sweep", rich_help_panel=_TRAIN)(study.sweep)
app.command("reproduce", rich_help_panel=_TRAIN)(reproduce.reproduce)
app.command("report", rich_help_panel=_LOOK)(show.report)
app.command("watch", rich_help_panel=_LOOK)(watch.watch)
app.command("table", rich_help_panel=_LOOK)(show.table)
app.command("verify", rich_help_panel=_LOOK)(show.verify)
app.command("methods", rich_help_panel=_MORE)(show.methods)
app.command("bench", rich_help_panel=_MORE)(run.bench)
app.add_typer(data.app, name="data", rich_help_panel=_MORE)
app.add_typer(configure.app, name="config", rich_help_panel=_MORE)
