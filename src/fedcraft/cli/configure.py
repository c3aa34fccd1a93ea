"""``fedcraft config``: the schema and a commented file to start from."""

from __future__ import annotations

import sys

import typer

from fedcraft.cli.console import print_json

app = typer.Typer(help="The keys of a configuration.", no_args_is_help=True)


@app.command()
def default() -> None:
    """Print every key with its default and its meaning, as TOML.

    Example: `fedcraft config default > mine.toml`
    """
    from fedcraft.config.toml import commented_default

    sys.stdout.write(commented_default())


@app.command()
def schema() -> None:
    """Print the JSON schema of a configuration, for editors that check and complete TOML."""
    from fedcraft.config.schema import Config

    print_json(Config.model_json_schema())
