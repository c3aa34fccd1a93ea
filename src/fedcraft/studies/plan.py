"""The runs of a sweep, and the name of each."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedcraft.config.messages import show
from fedcraft.config.objects import plain
from fedcraft.config.paths import at_home
from fedcraft.config.schema import MACHINE_KEYS, Config
from fedcraft.config.settings import changes_result
from fedcraft.config.toml import checked, merged, origins, read_toml
from fedcraft.errors import ConfigError
from fedcraft.runs.problems import flatten

_OWN_KEYS = ("grid", "variants")


@dataclass(frozen=True)
class Plan:
    """A base configuration, variants that change it, and a grid: variants x product of the grid.

    ``grid`` maps keys (dotted ones too) to lists of values, ``variants`` are sets of keys that
    change together. Errors name ``source``, unless ``changed`` says that the key comes from
    elsewhere.

    >>> plan = Plan({"rounds": 2}, {"client_lr": [0.1, 0.2], "seed": [1, 2, 3]})
    >>> len(plan.configs())
    6
    """

    base: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    variants: Sequence[Mapping[str, Any]] = ()
    source: str = "sweep"
    changed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(
        cls, path: str | Path, overrides: Mapping[str, Any] | None = None, override: str = ""
    ) -> Plan:
        """Read a TOML file: a configuration with a ``[grid]`` table and optional ``[[variants]]``.

        ``overrides`` change every run; with ``grid.key`` they change the grid. ``override`` says
        where they come from.
        """
        changes = overrides or {}
        given = merged(read_toml(at_home(path)), changes)
        plan = replace(cls.of(given, str(path)).over(changes), changed=origins(changes, override))
        if not plan.grid and not plan.variants:
            raise ConfigError(
                f"{path}: grid: expected a [grid] table with lists of values, found none. "
                "Add for example: [grid] then client_lr = [0.01, 0.1]"
            )
        return plan

    @classmethod
    def of(cls, given: Mapping[str, Any], source: str = "sweep") -> Plan:
        """Take the grid and the variants out of one mapping."""
        base = {key: value for key, value in given.items() if key not in _OWN_KEYS}
        grid, variants = given.get("grid", {}), given.get("variants", [])
        if not isinstance(grid, Mapping):
            raise ConfigError(f"{source}: grid: expected a table, found {grid!r}. Write [grid]")
        if not isinstance(variants, list) or not all(isinstance(v, Mapping) for v in variants):
            raise ConfigError(
                f"{source}: variants: expected tables, found {variants!r}. Write [[variants]]"
            )
        return cls(base, flatten(grid), variants, source)  # TOML reads a dotted key as a table

    def over(self, changes: Mapping[str, Any]) -> Plan:
        """Let ``changes`` of every run win where the grid or a variant sets the same key."""
        grid = {key: [changes[key]] if key in changes else v for key, v in self.grid.items()}
        variants = [replaced(variant, changes) for variant in self.variants]
        return replace(self, grid=grid, variants=variants)

    def configs(self) -> list[Config]:
        """Return every run of the plan once, checked, in the order of the grid."""
        return list(self._configs.values())

    @cached_property
    def _configs(self) -> dict[str, Config]:
        found: dict[str, Config] = {}
        for changes in self._changes():
            origin = origins(changes, f"{self.source}: grid") | dict(self.changed)
            config = checked(merged(self.base, changes), self.source, origin)
            found.setdefault(run_id(config), config)
        return found

    def _changes(self) -> Iterator[Mapping[str, Any]]:
        grid = plain(self.grid)
        for key, values in grid.items():
            if not isinstance(values, list) or not values:
                typed = self.changed.get(key)
                line = f"'grid.{key}=[{values}]'" if typed else f"{key} = [{show(values)}]"
                raise ConfigError(
                    f"{typed or self.source}: grid.{key}: expected a list with at least one value, "
                    f"found {show(values)}. {'Leave it out' if values == [] else f'Write {line}'}"
                )
        for variant in self.variants or ({},):
            for point in itertools.product(*grid.values()):
                yield merged(variant, dict(zip(grid, point, strict=True)))


def replaced(variant: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variant with the changes of those keys that it sets."""
    own = {key: value for key, value in changes.items() if key.partition(".")[0] in variant}
    return merged(variant, own)


def run_id(config: Config) -> str:
    """Return the name of a run, which depends only on the keys that affect its result.

    Workers, checkpoints and folders do not count.
    """
    counted = {
        key: value
        for key, value in config.values().items()
        if key not in MACHINE_KEYS and changes_result(key, value)
    }
    digest = hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:10]
    return f"{re.sub(r'[^a-z0-9]+', '-', config.name.lower()).strip('-') or 'run'}-{digest}"
