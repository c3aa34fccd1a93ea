"""Checks of a configuration: names that exist, and parts that take their parameters.

Every error starts with the key it is about, as ``key: what is wrong. What to do.``
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedcraft.aggregators.guards.size_cap import NoGuard
from fedcraft.attacks import attack
from fedcraft.config.objects import is_custom
from fedcraft.config.paths import located
from fedcraft.data import sources
from fedcraft.data.loading import unknown_dataset
from fedcraft.data.table import TABLES
from fedcraft.errors import FedcraftError
from fedcraft.methods import Method, Part, method
from fedcraft.methods.method import PARTS
from fedcraft.models.factory import find_model
from fedcraft.registry import parameters_of, require_known

METHOD_KEYS = frozenset({"client_lr", "server_lr", "look_ahead"})
"""The settings whose default follows from the method."""


def rates_of(name: str) -> dict[str, Any]:
    """Return the rates and the look-ahead of a method; nothing for an unknown name."""
    try:
        found = method(name)
    except FedcraftError:
        return {}
    return {key: getattr(found, key) for key in METHOD_KEYS}


def check_method(name: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ValueError if there is no such method, or one of its parts cannot be built."""
    with _about("method:"):
        row = method(name)
    for table in PARTS:
        _check_part(row, table, tables[table])


def check_attack(given: Mapping[str, Any]) -> None:
    """Raise ValueError if there is no such attack, or it does not take these parameters."""
    if not given:
        return
    if "name" not in given:
        raise ValueError("attack: expected attack.name beside its parameters, found none.")
    with _about("attack"):
        attack(**given)


def check_dataset(name: str, root: str | None) -> None:
    """Raise ValueError unless ``name`` is a known data set, or a table in ``root`` or from here."""
    if name in sources() or is_custom(name):
        return
    if Path(name).suffix not in TABLES:
        raise ValueError(str(unknown_dataset(name)))
    if not Path(located(name, root)).is_file():
        raise ValueError(f"dataset: the file {name} does not exist. Give the path of your table.")


def check_model(name: str) -> None:
    """Raise ValueError unless ``name`` is a known model or can be imported."""
    if not is_custom(name):
        with _about("model"):
            find_model(name)


def _check_part(row: Method, table: str, given: Mapping[str, Any]) -> None:
    if not given or is_custom(given):
        return
    name = given.get("name", getattr(row, table).name)
    with _about(f"{table}:"):
        built = replace(row, **{table: Part(name)}).build()  # type: ignore[arg-type]
        part = built[1].guard if table == "guard" else built[PARTS.index(table)]
        taken = parameters_of(type(part or NoGuard())) - {"lr", "loss"}
        require_known(f"{table}: {name}", set(given) - {"name"}, taken)
        changes: dict[str, Any] = {table: given}
        row.overridden(**changes)


@contextmanager
def _about(start: str) -> Iterator[None]:
    """Turn an error into a ValueError whose text begins with ``start``, the key."""
    try:
        yield
    except FedcraftError as error:
        text = str(error)
        key = "" if text.startswith(start) else f"{start.rstrip(':')}: "
        raise ValueError(key + text) from None
