"""Shell completion of overrides: keys, and the names that a key may take."""

from __future__ import annotations

from collections.abc import Iterator


def complete_override(incomplete: str) -> Iterator[str]:
    """Offer ``key=`` for every key, and values for the keys that have names."""
    from fedcraft.config.schema import TABLES, Config

    key, equals, start = incomplete.partition("=")
    if equals:
        yield from (f"{key}={value}" for value in _values(key) if value.startswith(start))
        return
    for name in Config.model_fields:
        if name.startswith(key):
            yield f"{name}." if name in TABLES else f"{name}="


def complete_method(incomplete: str) -> Iterator[str]:
    """Offer methods, then overrides."""
    yield from (name for name in _values("method") if name.startswith(incomplete))
    yield from complete_override(incomplete)


def complete_experiment(incomplete: str) -> Iterator[str]:
    """Offer the paper's experiments."""
    from fedcraft.studies.presets import presets

    yield from (name for name in presets() if name.startswith(incomplete))


def _values(key: str) -> list[str]:
    from typing import get_args

    from fedcraft.config.schema import Config
    from fedcraft.data import sources
    from fedcraft.methods import methods
    from fedcraft.models import models

    named = {
        "method": [row.name for row in methods()],
        "dataset": list(sources()),
        "model": list(models()),
    }
    if key in named:
        return named[key]
    field = Config.model_fields.get(key)
    choices = get_args(field.annotation) if field else ()
    return [choice for choice in choices if isinstance(choice, str)]
