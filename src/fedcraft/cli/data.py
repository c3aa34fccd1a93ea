"""``fedcraft data``: list data sets, fetch one, show how it is divided."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fedcraft.cli.complete import complete_override
from fedcraft.cli.console import Json, out_console, print_json
from fedcraft.cli.tables import plain_table

app = typer.Typer(help="Data sets: list, get, show.", no_args_is_help=True)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the data sets known by name, and where their files are on this machine."""
    from fedcraft.data import sources
    from fedcraft.data.hub import place

    known = list(sources().values())
    where = {source.name: place(source.name) for source in known}
    if as_json:
        print_json([asdict(source) | {"where": where[source.name]} for source in known])
        return
    cells = [
        [
            source.name,
            str(source.classes),
            "x".join(map(str, source.input_shape)),
            where[source.name],
            source.about,
        ]
        for source in known
    ]
    out_console().print(plain_table(["name", "classes", "shape", "where", "about"], cells))


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="Name of a data set.")],
    root: Annotated[
        str | None, typer.Option("--root", help="Folder with the Parquet files, if you have them.")
    ] = None,
) -> None:
    """Read a data set once, from a folder or the Hub, so that runs find it decoded.

    Example: `fedcraft data get cifar10`
    """
    from fedcraft.config.paths import at_home
    from fedcraft.data import load

    dataset = load(name, root=root and at_home(root))
    out_console().print(f"{dataset.name}: {len(dataset):,} samples, {dataset.classes} classes")
    out_console().print(f"fingerprint {dataset.fingerprint}")


@app.command()
def show(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATASET] [KEY=VALUE]...",
            help="A data set and how to divide it.",
            autocompletion=complete_override,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how a data set is divided among clients: sizes, labels per client, the split's hash.

    Example: `fedcraft data show cifar10 clients=1000 alpha=0.1`
    """
    from fedcraft.config.toml import COMMAND_LINE, load_config, parse_overrides
    from fedcraft.studies.describe import describe_split

    given = words or []
    names = [word for word in given if "=" not in word]
    overrides = parse_overrides(word for word in given if "=" in word)
    config = load_config({"dataset": names[0]} if names else {}, overrides, override=COMMAND_LINE)
    facts = describe_split(config)
    if as_json:
        print_json(facts)
        return
    cells = [[name, str(value)] for name, value in facts.items()]
    out_console().print(plain_table(["", ""], cells, f"{config.dataset}, {config.partition}"))
