"""``fedcraft data``: list data sets, fetch one, show how it is divided."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fedcraft.cli.console import Json, out_console
from fedcraft.cli.tables import print_table
from fedcraft.cli.words import argument, split_words
from fedcraft.errors import ConfigError

app = typer.Typer(help="Data sets: list, get, show.", no_args_is_help=True)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the data sets known by name, and where their files are on this machine."""
    from fedcraft.data import sources
    from fedcraft.data.hub import place

    known = list(sources().values())
    where = {source.name: place(source.name) for source in known}
    cells = [
        [s.name, str(s.classes), "x".join(map(str, s.input_shape)), where[s.name], s.about]
        for s in known
    ]
    data = [asdict(source) | {"where": where[source.name]} for source in known]
    heads = ["name", "classes", "shape", "where", "about"]
    print_table(heads, cells, data=data if as_json else None)


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
        argument("[DATASET] [KEY=VALUE]...", "A data set and how to divide it."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how a data set is divided among clients: sizes, labels per client, the split's hash.

    Example: `fedcraft data show cifar10 clients=1000 alpha=0.1`
    """
    from fedcraft.config.toml import COMMAND_LINE, load_config
    from fedcraft.studies.describe import describe_split

    names, overrides = split_words(words)
    if len(names) > 1:
        raise ConfigError(
            f"command line: expected one data set, found {names[0]!r} and {names[1]!r}. Write "
            "overrides as key=value"
        )
    config = load_config({"dataset": names[0]} if names else {}, overrides, override=COMMAND_LINE)
    facts = describe_split(config)
    cells = [[name, str(value).strip("[]")] for name, value in facts.items()]
    title = f"{config.dataset}, {config.partition}"
    print_table(["", ""], cells, title, data=facts if as_json else None)
