"""Do the names in a configuration exist, and do the parts of a method take its parameters?

Every error starts with the key it is about, as ``key: what is wrong. What to do.``
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedcraft.data import sources
from fedcraft.data.table import TABLES
from fedcraft.errors import FedcraftError
from fedcraft.experiments.places import located
from fedcraft.methods import Method, method, methods
from fedcraft.models import models

__all__ = [
    "PART_TABLES",
    "check_dataset",
    "check_method",
    "check_model",
    "did_you_mean",
    "rates_of",
]

PART_TABLES = ("local", "aggregator", "server")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` if a known name is near, else nothing."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    near = near or [longer for longer in names if len(name) > 1 and name in longer]
    return f" Did you mean {near[0]!r}?" if near else ""


def rates_of(name: str) -> dict[str, float]:
    """Return the rates a method starts from; nothing for a name that nobody knows."""
    try:
        found = method(name)
    except FedcraftError:
        return {}
    return {"client_lr": found.client_lr, "server_lr": found.server_lr}


def check_method(name: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ValueError if there is no such method, or one of its parts cannot be built."""
    known = [row.name for row in methods()]
    try:
        row = method(name)
    except FedcraftError as error:
        if ":" in name:  # a rule of one's own: what is wrong with it is known
            raise ValueError(f"method: {str(error).removeprefix('method: ')}") from None
        raise ValueError(
            f"method: unknown name {name!r}.{did_you_mean(name, known)} There are "
            f"{', '.join(known)}, and mixtures of clients and a server, such as fedprox+craft."
        ) from None
    for table in PART_TABLES:
        _check_part(row, table, tables[table])


def check_dataset(name: str, root: str | None) -> None:
    """Raise ValueError if ``name`` is no known data set and no table in ``root`` or from here."""
    known = sources()
    if name in known:
        return
    if Path(name).suffix not in TABLES:
        raise ValueError(
            f"dataset: unknown name {name!r}.{did_you_mean(name, known)} There are "
            f"{', '.join(known)}, or the path of a .parquet or .csv file."
        )
    if not Path(located(name, root)).is_file():
        raise ValueError(f"dataset: the file {name} does not exist. Give the path of your table.")


def check_model(name: str) -> None:
    """Raise ValueError if ``name`` is no known model and its module cannot be found."""
    if name in models():
        return
    module, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise ValueError(
            f"model: unknown name {name!r}.{did_you_mean(name, models())} There are "
            f"{', '.join(models())}, or package.module:Name for your own."
        )
    if not _importable(module):
        raise ValueError(
            f"model: there is no module {module!r} on the Python path. Write package.module:Name "
            "of something that can be imported from here."
        )


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _changed(row: Method, table: str, given: Mapping[str, Any]) -> Method:
    changes: dict[str, Any] = {table: given}
    return row.overridden(**changes)


def _check_part(row: Method, table: str, given: Mapping[str, Any]) -> None:
    if not given:
        return
    name = given.get("name", getattr(row, table).name)
    try:
        built = _changed(row, table, {"name": name}).build()
        taken = _parameters(type(built[PART_TABLES.index(table)])) - {"lr", "loss"}
        foreign = sorted(set(given) - taken - {"name"})
        if foreign:
            raise ValueError(
                f"{table}: {name} takes no parameter {foreign[0]!r}."
                f"{did_you_mean(foreign[0], taken)} It takes {', '.join(sorted(taken)) or 'none'}."
            )
        _changed(row, table, given).build()
    except FedcraftError as error:
        said = str(error)
        raise ValueError(said if said.startswith(f"{table}:") else f"{table}: {said}") from None


def _parameters(kind: type) -> set[str]:
    """Return the keyword parameters of a class, those it hands on to its bases included."""
    found: set[str] = set()
    for base in kind.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        found |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        found |= {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD} - {"self"}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found
