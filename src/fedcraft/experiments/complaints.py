"""What is wrong with a configuration, said once and for people: key, found, expected, fix, file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from fedcraft.errors import ConfigError
from fedcraft.experiments.config import DERIVED_KEYS, TABLES, Config
from fedcraft.experiments.names import PART_TABLES, did_you_mean

__all__ = ["COMMAND_LINE", "complain", "show"]

Origin = Callable[[str], str]
"""Tells where a key was given: a file, the command line, or nothing for Python."""

COMMAND_LINE = "command line"

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


def _python(_: str) -> str:
    return ""


def complain(error: ValidationError, origin: Origin = _python) -> ConfigError:
    """Return the error to raise, for keys from ``origin``."""
    lines = list(dict.fromkeys(_line(detail, origin) for detail in error.errors()))
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


def _line(detail: Mapping[str, Any], origin: Origin) -> str:
    place = [str(part) for part in detail["loc"]]
    said = "" if place else str(detail["ctx"]["error"])
    key = place[0] if place else re.split("[.:]", said, maxsplit=1)[0]
    where = origin(key)
    return (f"{where}: " if where else "") + (said or _wrong_value(key, detail, where))


def _wrong_value(key: str, detail: Mapping[str, Any], where: str) -> str:
    if detail["type"] == "extra_forbidden":
        return _unknown(key)
    found = show(detail["input"])
    return f"{key}: expected {_expected(detail)}, found {found}. {_fix(key, detail, where)}"


def _unknown(key: str) -> str:
    hint = did_you_mean(key, Config.model_fields) or " `fedcraft config default` shows every key."
    return f"unknown key {key!r}.{hint}"


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
    if kind == "value_error":
        return str(context["error"])
    return _TYPES.get(kind, str(detail["msg"]))


def _fix(key: str, detail: Mapping[str, Any], where: str) -> str:
    found = detail["input"]
    if detail["type"] == "literal_error" and isinstance(found, str):
        choices = detail["ctx"]["expected"].replace(" or ", ", ").split(", ")
        hint = did_you_mean(found, [choice.strip("'") for choice in choices])
        if hint:
            return hint.strip()
    if key in TABLES:
        return _as_table(key, found, where)
    default = Config.model_fields[key].get_default()
    if default is None or key in DERIVED_KEYS:
        return f"Change {key} or leave it out."
    return f"Try {key} = {show(default)}, the default, or leave it out."


def _as_table(key: str, found: Any, where: str) -> str:
    named = key in PART_TABLES and isinstance(found, str)
    if where == COMMAND_LINE:
        return f"Write {key}.name={found}" if named else f"Write {key}.KEY=VALUE"
    if where:
        return f"Write it as a table: [{key}]"
    return f"Write {key}={ {'name': found} if named else {} }"
