"""What is wrong with a configuration, said once and for people: key, found, expected, fix, file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from fedcraft.errors import ConfigError
from fedcraft.experiments.config import TABLES, Config
from fedcraft.experiments.names import did_you_mean

__all__ = ["complain", "show"]

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


def complain(error: ValidationError, origin: Callable[[str], str]) -> ConfigError:
    """Return the error to raise; ``origin`` tells where a key was given."""
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


def _line(detail: Mapping[str, Any], origin: Callable[[str], str]) -> str:
    place = [str(part) for part in detail["loc"]]
    if not place:
        said = str(detail["ctx"]["error"])
        return f"{origin(said.partition(':')[0])}: {said}"
    key = place[0]
    if detail["type"] == "extra_forbidden":
        return f"{origin(key)}: {_unknown(key)}"
    found = show(detail["input"])
    return f"{origin(key)}: {key}: expected {_expected(detail)}, found {found}. {_fix(key, detail)}"


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


def _fix(key: str, detail: Mapping[str, Any]) -> str:
    found = detail["input"]
    if detail["type"] == "literal_error" and isinstance(found, str):
        choices = detail["ctx"]["expected"].replace(" or ", ", ").split(", ")
        hint = did_you_mean(found, [choice.strip("'") for choice in choices])
        if hint:
            return hint.strip()
    if key in TABLES:
        return f"Write it as a table: [{key}]"
    default = Config.model_fields[key].get_default()
    if default is None:
        return f"Change {key} or leave it out."
    return f"Try {key} = {show(default)}, the default, or leave it out."
