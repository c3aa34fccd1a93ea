"""Reads and writes configurations: TOML files, ``key=value`` words, dictionaries."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from fedcraft.config.messages import COMMAND_LINE as COMMAND_LINE
from fedcraft.config.messages import config_error
from fedcraft.config.paths import at_home, lasting_root
from fedcraft.config.schema import KEYS, TABLES, Config, not_of_partition
from fedcraft.errors import ConfigError
from fedcraft.registry import did_you_mean

ConfigLike = Config | Mapping[str, Any] | str | Path | None

CONFIG_FILE = "config.toml"


def load_config(
    source: ConfigLike = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    names: bool = True,
    override: str = "",
) -> Config:
    """Return the checked configuration of a file, a run directory, a mapping, or the defaults.

    ``overrides`` win over the source and may have dotted keys (``aggregator.constraint``);
    ``override`` says where they come from when one is wrong.
    ``names=False`` does not check whether method, data set and model exist: for old results.

    >>> load_config({"rounds": 3}, {"client_lr": 0.1}).client_lr
    0.1
    """
    given, name = read_source(source)
    changes = overrides or {}
    return checked(merged(given, changes), name, origins(changes, override), names=names)


def origins(changes: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return where the keys of ``changes`` come from, dotted ones by their table too.

    A key of the grid, ``grid.client_lr``, is also known as ``client_lr``.
    """
    names = [name for key in changes for name in (key, key.removeprefix("grid."))]
    return {part: where for name in names for part in (name, name.partition(".")[0])}


def checked(
    given: Mapping[str, Any], source: str, changed: Mapping[str, str], *, names: bool = True
) -> Config:
    """Validate; ``changed`` says where a wrong key comes from, if not from ``source``."""
    try:
        return Config.model_validate(dict(given), context={"names": names})
    except ValidationError as error:
        raise config_error(error, Config, lambda key: changed.get(key, source)) from None


def merged(given: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given`` updated by ``changes``: tables key by key, dotted keys into tables.

    Another partition drops the parameters of the old one that it does not take.
    """
    partition = changes.get("partition", given.get("partition"))
    left_out = not_of_partition(partition) if partition != given.get("partition") else ()
    result = {key: value for key, value in given.items() if key not in left_out}
    for key, value in changes.items():
        table, _, inner = key.partition(".")
        if inner:
            result[table] = merged(_table(key, result.get(table, {})), {inner: value})
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """Read ``key=value`` words; a value is TOML, and a bare word is text.

    >>> parse_overrides(["method=craft", "client_lr=.05", "aggregator.layers=[1, 2]"])
    {'method': 'craft', 'client_lr': 0.05, 'aggregator.layers': [1, 2]}
    """
    pairs = [_pair(word) for word in words]
    return dict(pairs)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; an error names the line that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist.{_near_file(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); it should be a TOML file in UTF-8"
        ) from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax(path, text, error)) from None


def to_toml(values: Mapping[str, Any]) -> str:
    """Return ``values`` as TOML."""
    return tomli_w.dumps(dict(values))


def config_text(config: Config) -> bytes:
    """Return config.toml of a run: every key that has a value, to repeat the run anywhere."""
    root = lasting_root(config.dataset, config.data_root)
    return to_toml(config.values() | ({} if root is None else {"data_root": root})).encode()


def commented_default() -> str:
    """Return the default configuration as TOML, every key with its meaning."""
    config = Config()
    lines = [
        "# Every key of a fedcraft run, with its default. Leave out keys that you do not change.",
        "# A key behind a # is not set: it has no value, or follows from method and data set.",
    ]
    lines += [_commented(key, getattr(config, key)) for key in KEYS]
    return "\n".join(lines) + "\n"


def _commented(key: str, value: Any) -> str:
    about = Config.model_fields[key].description
    if key in TABLES:
        return f"\n# {about}\n# [{key}]"
    setting = f"{key} =" if value is None else to_toml({key: value}).strip()
    behind = "# " if value is None or key in Config.derived_keys else ""
    return f"\n# {about}\n{behind}{setting}"


def read_source(source: ConfigLike) -> tuple[Mapping[str, Any], str]:
    """Return the keys of a source, unchecked, and its name in messages."""
    if source is None:
        return {}, ""
    if isinstance(source, Config):
        return source.given(), ""
    if isinstance(source, Mapping):
        return source, ""
    path = at_home(source)
    path = path / CONFIG_FILE if path.is_dir() else path
    return read_toml(path), str(path)


def _pair(word: str) -> tuple[str, Any]:
    key, equals, value = word.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(
            f"{COMMAND_LINE}: expected key=value, found {word!r}; write for example client_lr=0.05"
        )
    return key, _value(value.strip())


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return float(text)  # .5 and 1. are numbers, though not in TOML
    except ValueError:
        return text


def _table(key: str, found: Any) -> Mapping[str, Any]:
    if isinstance(found, Mapping):
        return found
    raise ConfigError(
        f"{key}: {key.partition('.')[0]} is a plain value, not a table. "
        f"Write {key.partition('.')[0]}=... without a dot."
    )


def _near_file(path: Path) -> str:
    folder = path.parent
    names = [file.name for file in folder.glob("*.toml")] if folder.is_dir() else []
    return did_you_mean(path.name, names) or (
        " Give the path of a TOML file or of a run directory; `fedcraft config default` prints one."
    )


def _syntax(path: Path, text: str, error: tomllib.TOMLDecodeError) -> str:
    match = re.search(r"at line (\d+)", str(error))
    lines = text.splitlines()
    number = min(int(match[1]), len(lines)) if match else len(lines)
    line = lines[number - 1].strip() if lines else ""
    what = re.sub(r" \(at .*\)$", "", str(error)).rstrip(".")
    return (
        f"{path}: line {number} is not TOML: {line!r} ({what[0].lower()}{what[1:]}). "
        'Write key = value, with text in quotes, e.g. method = "craft", and every key once.'
    )
