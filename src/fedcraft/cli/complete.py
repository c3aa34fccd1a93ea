"""Shell completion: keys, the names that a key may take, experiments.

The words are in ``words.json``, which ``python docs/generate.py`` writes: reading the schema itself
would load torch, and a shell would wait for it at every Tab.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any


def complete_override(incomplete: str) -> Iterator[str]:
    """Offer ``key=`` for every key, and values for the keys that have names."""
    keys = known_keys()
    key, equals, start = incomplete.partition("=")
    if equals:
        yield from (f"{key}={value}" for value in keys.get(key) or () if value.startswith(start))
        return
    for name, values in keys.items():
        if name.startswith(key):
            yield f"{name}." if values is None else f"{name}="


def complete_method(incomplete: str) -> Iterator[str]:
    """Offer methods, then overrides."""
    yield from (name for name in known_keys()["method"] or () if name.startswith(incomplete))
    yield from complete_override(incomplete)


def complete_experiment(incomplete: str) -> Iterator[str]:
    """Offer the paper's experiments."""
    yield from (name for name in _words()["experiments"] if name.startswith(incomplete))


def known_keys() -> dict[str, list[str] | None]:
    """Return the keys of a configuration with the names they may take; None for a table."""
    keys: dict[str, list[str] | None] = _words()["keys"]
    return keys


def _words() -> Any:
    return json.loads(files("fedcraft.cli").joinpath("words.json").read_text(encoding="utf-8"))
