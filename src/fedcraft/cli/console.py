"""Shared by the commands: the console, exit codes, and the form of errors."""

from __future__ import annotations

import inspect
import json
import sys
from enum import IntEnum
from shlex import quote
from typing import Annotated, Any, get_type_hints

import click
import typer
from rich.console import Console
from typer.core import TyperArgument, TyperGroup
from typer.models import ArgumentInfo

from fedcraft.console import notes
from fedcraft.errors import (
    ConfigError,
    DataError,
    FedcraftError,
    InputError,
    MissingExtraError,
    NonFiniteError,
    explain_os_error,
)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


class Code(IntEnum):
    """The exit codes that scripts may rely on."""

    OK = 0
    FAILED = 1
    BAD_CONFIG = 2
    INTERRUPTED = 130


# No markup: labels and paths may contain brackets and colons.
_PLAIN: dict[str, Any] = {"highlight": False, "soft_wrap": True, "markup": False, "emoji": False}
_CANNOT_START = (ConfigError, InputError, DataError, MissingExtraError)


class Group(TyperGroup):
    """Commands whose known errors end in one readable message and an exit code."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command with the help of its arguments."""
        command = super().get_command(ctx, cmd_name)
        for found in (command, *getattr(command, "commands", {}).values()):
            _restore_help(found)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; with ``--debug`` errors keep their traceback."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise _as_key(error) from error
        except FedcraftError as error:
            if ctx.params.get("debug"):
                raise
            raise typer.Exit(_explain(error)) from error
        except OSError as error:
            if ctx.params.get("debug") or isinstance(error, BrokenPipeError):  # click's to handle
                raise
            _print_error(explain_os_error(error))
            raise typer.Exit(Code.FAILED) from error
        except KeyboardInterrupt as error:
            _explain_interrupt(error)
            raise typer.Exit(Code.INTERRUPTED) from error


def out_console(*, quiet: bool = False) -> Console:
    """The console of results."""
    return Console(quiet=quiet, **_PLAIN)


def error_console(*, quiet: bool = False) -> Console:
    """The console of everything that is not a result: progress, notes, errors."""
    return notes(quiet=quiet, **_PLAIN)


def print_json(content: Any) -> None:
    """Print JSON on standard output; NaN and Inf become null."""
    sys.stdout.write(json.dumps(_plain(content), indent=2, default=str) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def _restore_help(command: click.Command | None) -> None:
    """Read the help of arguments from their annotations: click 8.5 discards what typer sets."""
    if command is None or command.callback is None:
        return
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    for param in command.params:
        for about in getattr(hints.get(str(param.name)), "__metadata__", ()):
            if isinstance(about, ArgumentInfo) and isinstance(param, TyperArgument):
                param.help = about.help


def _as_key(error: click.NoSuchOption) -> click.UsageError:
    """Say how a key is set, where somebody wrote it as an option: ``--rounds 3``."""
    from fedcraft.cli.complete import known_keys

    key = error.option_name.lstrip("-").replace("-", "_")
    if key not in known_keys() or error.ctx is None:
        return error
    if not any("KEY=VALUE" in (p.metavar or "") for p in error.ctx.command.params):
        return error
    return click.UsageError(
        f"{error.option_name} is not an option. {key} is a key of the configuration: write "
        f"{key}=VALUE",
        error.ctx,
    )


def _explain(error: FedcraftError) -> Code:
    _print_error(str(error))
    never_began = isinstance(error, _CANNOT_START) and not isinstance(error, NonFiniteError)
    return Code.BAD_CONFIG if never_began else Code.FAILED


def _explain_interrupt(error: KeyboardInterrupt) -> None:
    from fedcraft.engine import Interrupted

    console = error_console()
    if not isinstance(error, Interrupted):
        console.print("interrupted", style="yellow")
        return
    console.print(f"Interrupted after round {error.round}; a checkpoint is saved.")
    command = f"fedcraft resume {quote(str(error.directory))}"
    console.print(f"Continue with:  {command}", style="bold")


def _print_error(message: str) -> None:
    console = error_console()
    console.print("error:", style="bold red", end=" ")
    console.print(message)
