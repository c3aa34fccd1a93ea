"""Readable errors about a configuration: the key, what was expected and found, and the fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from fedcraft.errors import ConfigError
from fedcraft.registry import did_you_mean

COMMAND_LINE = "command line"

Origin = Callable[[str], str]
"""Returns the place where a key was given: a file, the command line, or nothing for Python."""

_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "dict_type": "a table",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "of at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "of at most"),
}
_OF_SWEEPS = ("grid", "variants")


def config_error(
    error: ValidationError, model: type[BaseModel], origin: Origin = lambda _: ""
) -> ConfigError:
    """Return the error to raise about keys of ``model`` that were given at ``origin``."""
    lines = list(dict.fromkeys(_line(detail, model, origin) for detail in error.errors()))
    if len(lines) == 1:
        return ConfigError(lines[0])
    return ConfigError("\n".join([f"{len(lines)} keys are wrong:", *(f"  {x}" for x in lines)]))


def show(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return "nothing" if value is None else repr(value)


def _line(detail: Mapping[str, Any], model: type[BaseModel], origin: Origin) -> str:
    place = [str(part) for part in detail["loc"]]
    text = "" if place else str(detail["ctx"]["error"])
    key = place[0] if place else re.split("[.:]", text, maxsplit=1)[0]
    where = origin(key)
    return (f"{where}: " if where else "") + (text or _wrong_value(key, detail, model, where))


def _wrong_value(key: str, detail: Mapping[str, Any], model: type[BaseModel], where: str) -> str:
    if detail["type"] == "extra_forbidden":
        if key in _OF_SWEEPS:
            file = where if where.endswith(".toml") else "FILE"
            return (
                f"[{key}] describes several runs, but a single configuration is expected here. "
                f"Run them with `fedcraft sweep {file}`, or remove [{key}]."
            )
        every = " `fedcraft config default` shows every key."
        return f"unknown key {key!r}.{did_you_mean(key, model.model_fields) or every}"
    found = show(detail["input"])
    return f"{key}: expected {_expected(detail)}, found {found}. {_fix(key, detail, model, where)}"


def _expected(detail: Mapping[str, Any]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"a number {words} {context[bound]}"
    if kind == "literal_error":
        return f"one of {context['expected'].replace(chr(39), '')}"
    if kind == "string_too_short":
        return "text that is not empty"
    if kind == "string_too_long":
        return f"at most {context['max_length']} characters"
    return _TYPES.get(kind, str(detail["msg"]))


def _fix(key: str, detail: Mapping[str, Any], model: type[BaseModel], where: str) -> str:
    found, field = detail["input"], model.model_fields[key]
    if detail["type"] == "literal_error" and isinstance(found, str):
        choices = re.findall(r"'(.*?)'", detail["ctx"]["expected"])
        hint = did_you_mean(found, choices)
        if hint:
            return hint.strip()
    if field.annotation == dict[str, Any]:
        return _as_table(key, where)
    default = field.get_default()
    if default is None or key in getattr(model, "derived_keys", ()):
        return f"Change {key} or leave it out."
    return f"Try {key} = {show(default)}, the default, or leave it out."


def _as_table(key: str, where: str) -> str:
    if where == COMMAND_LINE:
        return f"Write {key}.KEY=VALUE"
    return f"Write it as a table: [{key}]" if where else f"Write {key}={{}}"
