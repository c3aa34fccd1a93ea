"""Write the generated blocks of the pages: ``python docs/generate.py``.

A block lies between ``<!-- name -->`` and ``<!-- /name -->`` and comes from the program itself: the
table of methods, the defaults of their parts, every configuration key, every command's options.
A test fails when a page no longer says what the program does. The words of shell completion are
written too, to ``src/fedcraft/cli/words.json``.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import click
import typer

from fedcraft.aggregators import RULES, aggregator
from fedcraft.cli.app import app
from fedcraft.config.schema import KEYS, MACHINE_KEYS, TABLES, Config
from fedcraft.data import sources
from fedcraft.local import OBJECTIVES, local_objective
from fedcraft.methods import markdown_table, methods
from fedcraft.models import models
from fedcraft.server_optimizers import OPTIMIZERS, server_optimizer
from fedcraft.studies.presets import presets

DOCS = Path(__file__).parent
WORDS = DOCS.parent / "src" / "fedcraft" / "cli" / "words.json"
# The first key of each part of the schema, and what the part is about.
_PARTS = {
    "method": "What is trained, and on which data",
    "rounds": "How it is trained",
    "executor": "What the work is done with",
    "layers": "Layers, evaluation, checkpoints",
    "nonfinite": "When something goes wrong, and when to stop",
    "local": "Parts of the method, model and data",
}
_TELLING = 2  # larger limits only keep nonsense out and say nothing to a reader
# What every rule takes, and the server's rate, which is a key of its own.
_COMMON = {"nonfinite", "certify", "loss", "lr"}


def main() -> None:
    """Rewrite the blocks of every page and the words of shell completion."""
    WORDS.write_text(completion_words(), encoding="utf-8")
    for page in PAGES:
        path = DOCS / page
        path.write_text(filled(page), encoding="utf-8")


def filled(page: str) -> str:
    """Return the page with its blocks as they should be."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, block in PAGES[page]().items():
        text = _replaced(page, text, name, block)
    return text


def completion_words() -> str:
    """Return the words that a shell offers: keys, their values (null: a table), experiments."""
    named = {
        "method": [row.name for row in methods()],
        "dataset": list(sources()),
        "model": list(models()),
    }
    keys = {key: None if key in TABLES else named.get(key, _choices(key)) for key in KEYS}
    return json.dumps({"keys": keys, "experiments": list(presets())}, indent=1) + "\n"


def _choices(key: str) -> list[str]:
    annotation = Config.model_fields[key].annotation
    return [choice for choice in get_args(annotation) if isinstance(choice, str)]


def _replaced(page: str, text: str, name: str, block: str) -> str:
    start, stop = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(start) != 1 or text.count(stop) != 1:
        raise ValueError(f"{page}: expected one {start} and one {stop}")
    before, _, rest = text.partition(start)
    return f"{before}{start}\n{block.strip()}\n{stop}{rest.partition(stop)[2]}"


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    names = list(heads)
    lines = [names, ["---"] * len(names), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _methods_page() -> dict[str, str]:
    return {
        "methods": markdown_table(),
        "rates": _rates(),
        "local defaults": _defaults(OBJECTIVES, local_objective),
        "aggregator defaults": _defaults(RULES, aggregator),
        "server defaults": _defaults(OPTIMIZERS, server_optimizer),
    }


def _rates() -> str:
    rows = [
        (f"`{row.name}`", row.client_lr, row.server_lr, _asks(row.needs), _judged(row.personal))
        for row in methods()
    ]
    heads = ("method", "`client_lr`", "`server_lr`", "asks clients for", "clients are judged by")
    return _table(heads, rows)


def _asks(needs: Iterable[str]) -> str:
    words = {"losses": "loss before training", "steps": "local steps"}
    return ", ".join(["update", *(words[need] for need in sorted(needs) if need in words)])


def _judged(personal: bool) -> str:
    return "their own model" if personal else "the global model"


def _defaults(table: Mapping[str, str], build: Callable[[str], Any]) -> str:
    rows = [
        (f"`{name}`", ", ".join(_parameters(type(build(name)))) or "none") for name in sorted(table)
    ]
    return _table(("name", "parameters with their defaults"), rows)


def _parameters(kind: type) -> Iterator[str]:
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.name not in _COMMON and parameter.kind is parameter.KEYWORD_ONLY:
            yield f"`{parameter.name}={parameter.default!r}`".replace('"', "'")


def _configuration_page() -> dict[str, str]:
    machine = ", ".join(f"`{key}`" for key in KEYS if key in MACHINE_KEYS)
    return {"keys": "\n\n".join(_key_parts()), "machine keys": machine}


def _key_parts() -> Iterator[str]:
    keys = list(KEYS)
    starts = [*(keys.index(first) for first in _PARTS), len(keys)]
    for title, start, stop in zip(_PARTS.values(), starts, starts[1:], strict=False):
        rows = [_key_row(key) for key in keys[start:stop]]
        yield f"### {title}\n\n{_table(('key', 'default', 'may be', 'meaning'), rows)}"


def _key_row(key: str) -> tuple[str, str, str, str]:
    schema = Config.model_json_schema()["properties"][key]
    default = getattr(Config(), key)
    shown = "" if key in TABLES or default is None else f"`{_toml(default)}`"
    about = " ".join(str(schema["description"]).split())
    return f"`{key}`", shown, _kind(schema), about.replace("|", "\\|")


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def _kind(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = [_kind(option) for option in schema["anyOf"] if option.get("type") != "null"]
        return " or ".join(kinds)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    names = {"string": "text", "integer": "whole number", "number": "number"}
    names |= {"boolean": "true or false", "object": "table"}
    return names[schema["type"]] + _range(schema)


def _range(schema: Mapping[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    known = [key for key in signs if key in schema and schema[key] <= _TELLING]
    bounds = [f"{signs[key]} {schema[key]:g}" for key in known]
    return f" {', '.join(bounds)}" if bounds else ""


def _commands_page() -> dict[str, str]:
    blocks = {name: _command(name, command) for name, command in commands().items()}
    return blocks | {"experiments": _experiments()}


def commands() -> dict[str, click.Command]:
    """Return every command by the words that call it."""
    return dict(_tree("fedcraft", typer.main.get_command(app)))


def _tree(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    if any(isinstance(p, click.Option) for p in command.params):
        yield name, command
    for word, part in command.commands.items():
        yield from _tree(f"{name} {word}", part)


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    options = [p for p in command.params if _is_shown(p)]
    first = inspect.cleandoc(command.help or "").split("\n\n")[0]
    parts = [" ".join(first.split()), f"```text\n{usage}\n```"]
    if options:
        parts.append(_table(("option", "default", "meaning"), map(_option_row, options)))
    return "\n\n".join(parts)


def _is_shown(parameter: click.Parameter) -> bool:
    # What completion needs to be told depends on the shell around this program.
    return isinstance(parameter, click.Option) and "completion" not in str(parameter.name)


def _option_row(option: click.Option) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names, "on" if option.default else "", option.help or ""
    default = "" if option.default is None else f"`{option.default}`"
    return f"{names} {_value(option)}", default, option.help or ""


def _value(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return " or ".join(f"`{choice}`" for choice in option.type.choices)
    return str(option.name).upper()


def _experiments() -> str:
    rows = [(f"`{item.name}`", item.about, item.size) for item in presets().values()]
    return _table(("name", "what it is", "runs"), rows)


PAGES: dict[str, Callable[[], dict[str, str]]] = {
    "methods.md": _methods_page,
    "configuration.md": _configuration_page,
    "commands.md": _commands_page,
}


if __name__ == "__main__":
    main()
