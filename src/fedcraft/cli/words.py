"""The words behind a command: names, files, and overrides in the form ``key=value``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer

from fedcraft.cli.complete import complete_override, known_keys
from fedcraft.errors import ConfigError


def argument(
    metavar: str, help: str, complete: Callable[..., Iterable[str]] = complete_override
) -> Any:
    """Return typer's argument for words, whose keys and names the shell completes."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete)


def split_words(words: list[str] | None) -> tuple[list[str], dict[str, Any]]:
    """Return the words without ``=``, and the others as overrides."""
    from fedcraft.config.toml import parse_overrides

    given = words or []
    names = [word for word in given if "=" not in word]
    return names, parse_overrides(word for word in given if "=" in word)


def source_and_overrides(words: list[str] | None) -> tuple[Path | None, dict[str, Any]]:
    """Return the configuration file (the one word without ``=``) and the overrides."""
    from fedcraft.config.paths import at_home

    files, overrides = split_words(words)
    for word in files:
        _refuse_word(word, exists=at_home(word).exists())
    if len(files) > 1:
        raise ConfigError(
            f"command line: expected one configuration file, found {files[0]!r} and "
            f"{files[1]!r}. Write overrides as key=value."
        )
    return (Path(files[0]) if files else None), overrides


def _refuse_word(word: str, *, exists: bool) -> None:
    """Raise an error about a word that is no configuration, but a key, a value or a table."""
    keys = known_keys()
    if word in keys and not exists:
        raise ConfigError(f"command line: {word} is a key. Give it a value: {word}=VALUE")
    kinds = [key for key in ("method", "dataset", "model") if word in (keys[key] or ())]
    if kinds and not exists:
        raise ConfigError(
            f"command line: {word} is the name of a {kinds[0]}, found where a file is expected. "
            f"Write {kinds[0]}={word}"
        )
    if Path(word).suffix in (".csv", ".parquet"):
        raise ConfigError(
            f"command line: {word} is a table of data, found where a TOML file is expected. Write "
            f"dataset={word}"
        )
