"""Python objects in a configuration: the names under which its file records them.

A configuration takes a :class:`Dataset`, arrays, a data frame, a module, a :class:`Method` or a
rule wherever it takes a name. An importable object is recorded by its import path, so that the run
can be repeated from its file alone. Everything else is recorded as ``custom (NAME, FINGERPRINT)``:
such a run is resumed by passing the same object again.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Mapping
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset

from fedcraft.aggregators import GUARDS, RULES, Aggregator, Guard
from fedcraft.data import Dataset, from_arrays, from_table, from_torch
from fedcraft.errors import ConfigError, FedcraftError
from fedcraft.local import OBJECTIVES, LocalObjective
from fedcraft.methods import Method, Part, method
from fedcraft.methods.method import PARTS, stable
from fedcraft.server_optimizers import OPTIMIZERS, ServerOptimizer
from fedcraft.updates import require_materialized

_CUSTOM = "custom ("
_FRAME = "frame"
_PARTS = (RULES, GUARDS, OBJECTIVES, OPTIMIZERS)
_NAMES = {path: name for table in _PARTS for name, path in table.items()}


class Objects(dict[str, Any]):
    """The objects of a configuration by key; comparisons look at their fingerprints instead."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Objects)


def plain(value: Any) -> Any:
    """Return a value as a file would give it back: plain numbers, text for paths, lists, tables."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple | range) else value


def check_storable(key: str, value: Any) -> None:
    """Raise ValueError about the first value in a table that no file can hold."""
    if isinstance(value, Mapping):
        for inner, item in value.items():
            check_storable(f"{key}.{inner}", item)
    elif isinstance(value, list):
        for item in value:
            check_storable(key, item)
    elif not isinstance(value, str | int | float):
        raise ValueError(_not_storable(key, value))


def _not_storable(key: str, value: Any) -> str:
    table, _, inner = key.partition(".")
    found = "a function" if callable(value) else "nothing" if value is None else repr(value)
    instead = (
        f"Pass method=fedcraft.method(..., {table}={{{inner!r}: ...}}) to fedcraft.run instead."
        if callable(value) and table in PARTS
        else f"Change {key} or leave it out."
    )
    return f"{key}: a configuration file cannot hold {found}. {instead}"


def is_custom(name: object) -> bool:
    """Tell whether a name, or a part's table, stands for an object that was passed from Python."""
    found = name.get("name") if isinstance(name, Mapping) else name
    return isinstance(found, str) and found.startswith(_CUSTOM)


def require_object(key: str, name: object) -> None:
    """Raise ConfigError if ``name`` stands for an object: it was not passed this time."""
    if is_custom(name):
        found = name["name"] if isinstance(name, Mapping) else name
        raise ConfigError(
            f"{key}: {found} stands for an object that was passed from Python, which no file can "
            f"hold. Pass it again, for example: fedcraft.resume(directory, {key}=...)"
        )


def describe(given: Mapping[str, Any]) -> tuple[dict[str, Any], Objects]:
    """Return the keys with names in place of objects, completed from them, and the objects."""
    keys, objects = dict(given), Objects()
    _describe_dataset(keys, objects)
    _describe_model(keys, objects)
    _describe_method(keys, objects)
    return keys, objects


def _describe_dataset(keys: dict[str, Any], objects: Objects) -> None:
    found = keys.get("dataset")
    if found is None or isinstance(found, str | os.PathLike):
        return
    options = keys.get("data_options") or {}
    dataset = _as_dataset(found, options)
    if options and dataset.name != _FRAME:
        raise ConfigError("data_options: only tables take options. Leave out data_options.")
    objects["dataset"] = dataset
    keys["dataset"] = _custom(dataset.name, dataset.fingerprint)
    if dataset.owners is not None and keys.setdefault("partition", "natural") == "natural":
        keys.setdefault("clients", int(np.unique(dataset.owners).size))


def _as_dataset(found: Any, options: Mapping[str, Any]) -> Dataset:
    if isinstance(found, Dataset):
        return found
    if isinstance(found, TorchDataset):
        return from_torch(found)
    if isinstance(found, tuple | list) and len(found) in (2, 3):
        return from_arrays(*found)
    if hasattr(found, "columns"):
        return from_table(found, **options)
    raise ConfigError(
        "dataset: expected a name, a Dataset, arrays (inputs, labels) or (inputs, labels, owners), "
        f"or a data frame, found {type(found).__name__}"
    )


def _describe_model(keys: dict[str, Any], objects: Objects) -> None:
    found = keys.get("model")
    if isinstance(found, nn.Module):
        require_materialized("model", found)
        digest = hashlib.sha256()
        for name, value in found.state_dict().items():
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        name = _custom(type(found).__name__, digest.hexdigest())
    elif callable(found):
        name = _import_path(found) or _custom(_title(found), _fingerprint(found))
    else:
        return
    keys["model"], objects["model"] = name, found


def _describe_method(keys: dict[str, Any], objects: Objects) -> None:
    found = keys.get("method")
    if isinstance(found, Aggregator) or inspect.isclass(found):
        _describe_rule(keys)
    elif isinstance(found, Method):
        keys["method"] = _known(found.name)
        if keys["method"] != found.name:
            keys.setdefault("label", found.name)
        row = found.overridden(**{table: keys.pop(table, None) or None for table in PARTS})
        keys |= {table: getattr(row, table) for table in PARTS}
        keys.setdefault("client_lr", row.client_lr)
        keys.setdefault("server_lr", row.server_lr)
        keys.setdefault("look_ahead", row.look_ahead)
    elif not isinstance(found, str | None):
        raise ConfigError(
            f"method: expected a name, a Method or an aggregation rule, found {found!r}"
        )
    for table in PARTS:
        _describe_part(keys, table, objects)
    if isinstance(keys.get("attack"), str):
        keys["attack"] = {"name": keys["attack"]}
    if keys.get("method") is not found:
        objects["method"] = found


def _describe_rule(keys: dict[str, Any]) -> None:
    """Put a rule in place of a method: behind the clients and rates of its method, or FedAvg's."""
    rule = keys["method"]
    name = _NAMES.get(_import_path(rule if inspect.isclass(rule) else type(rule)))
    if name is None and _import_path(rule):
        keys["method"] = _import_path(rule)
        return
    keys["method"], keys["aggregator"] = _known(name or "fedavg"), rule
    if name is None:
        keys.setdefault("label", _title(rule))


def _describe_part(keys: dict[str, Any], table: str, objects: Objects) -> None:
    found = keys.get(table)
    if isinstance(found, ServerOptimizer):
        raise ConfigError(
            f"{table}: expected a name, a class or a table, found an object with its own rate, "
            f"{type(found).__name__}(lr={found.lr}). Pass its class, and the rate as server_lr"
        )
    if isinstance(found, str):
        keys[table] = {"name": found}
    objects_of_parts = Part | LocalObjective | Aggregator | Guard
    if not inspect.isclass(found) and not isinstance(found, objects_of_parts):
        return
    part = found if isinstance(found, Part) else Part(found)
    own = getattr(method(_known(keys.get("method", "craft"))), table)
    path = part.name if isinstance(part.name, str) else _import_path(part.name)
    name = _NAMES.get(path, path)
    params = plain(dict(part.params))
    if name and _storable(params) and own.overridden({"name": name, **params}).params == params:
        changed = params if params != own.params else {}
        keys[table] = changed if name == own.name else {"name": name, **params}
        return
    objects[table] = part
    code = "" if isinstance(part.name, str) else _fingerprint(part.name)
    digest = hashlib.sha256((part.signature + code).encode()).hexdigest()
    keys[table] = {"name": _custom(_title(part.name), digest)}


def _known(name: Any) -> str:
    """Return the name of a method, or fedavg for one that is not in the table."""
    try:
        return name if method(name) else "fedavg"
    except FedcraftError:
        return "fedavg"


def _storable(params: Mapping[str, Any]) -> bool:
    try:
        check_storable("", params)
    except ValueError:
        return False
    return True


def _custom(name: str, digest: str) -> str:
    return f"{_CUSTOM}{name}, {digest[:10]})"


def _title(found: Any) -> str:
    return found if isinstance(found, str) else getattr(found, "__name__", type(found).__name__)


def _import_path(found: Any) -> str:
    """Return ``package.module:Name`` of a class or function that any process can import."""
    module, name = getattr(found, "__module__", ""), getattr(found, "__qualname__", ".")
    here = getattr(sys.modules.get(module), name, None) is found
    return f"{module}:{name}" if here and module != "__main__" else ""


def _fingerprint(found: Any) -> str:
    """Return a digest of an object's attributes and of the code of its class or function."""
    kind = found if inspect.isclass(found) or isinstance(found, FunctionType) else type(found)
    functions = vars(kind).values() if inspect.isclass(kind) else [kind]
    codes = [_code(f.__code__) for f in functions if isinstance(f, FunctionType)]
    held = [stable(cell.cell_contents) for cell in getattr(found, "__closure__", None) or ()]
    return hashlib.sha256(f"{stable(found)}{codes}{held}".encode()).hexdigest()


def _code(code: CodeType) -> str:
    constants = [_code(c) if isinstance(c, CodeType) else _sorted(c) for c in code.co_consts]
    return f"{code.co_code.hex()}{code.co_names}{constants}"


def _sorted(constant: Any) -> str:
    """Return a constant as text; the order of a set differs from process to process."""
    return repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
