"""The paper's experiments and some more, by name, from the TOML files in this folder.

The scale ``paper`` is the protocol of Appendix C; ``small`` keeps the data and shortens rounds,
clients and grid; ``tiny`` is a smoke test of the whole path. The smaller scales do not predict the
paper's numbers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal, get_args

from fedcraft.config.toml import merged, origins
from fedcraft.errors import ConfigError
from fedcraft.methods import mixture_name
from fedcraft.registry import did_you_mean
from fedcraft.studies.plan import Plan, replaced

Scale = Literal["tiny", "small", "paper"]
Keys = Mapping[str, Any]

_FILES = ("paper.toml", "further.toml")
_RATES = ("client_lr", "server_lr")


def read_data(name: str) -> dict[str, Any]:
    """Return the content of a TOML file of this package."""
    return tomllib.loads(files(__name__).joinpath(name).read_text(encoding="utf-8"))


_PROTOCOL = read_data("protocol.toml")
SCALES: tuple[Scale, ...] = get_args(Scale)
METHODS: tuple[str, ...] = tuple(_PROTOCOL["methods"])
SEEDS: tuple[int, ...] = tuple(_PROTOCOL["seeds"])
ROUNDS: int = _PROTOCOL["common"]["rounds"]


@dataclass(frozen=True)
class Preset:
    """One table or figure: a problem and what is trained on it.

    ``published`` names the table in :mod:`fedcraft.studies.published` to compare with ours. The
    best setting of every method is run again with the seeds of ``repeats``. ``small`` changes the
    model's usual small scale. ``until_stored`` names a stored preset of the same problem, which
    shows a part of the table until its own runs are stored.
    """

    name: str
    about: str
    base: Keys
    variants: tuple[Keys, ...]
    seeds: tuple[int, ...] = ()
    repeats: tuple[int, ...] = ()
    published: str | None = None
    until_stored: str | None = None
    small: Keys = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The methods, or their labels, in the order of the table."""
        return list(dict.fromkeys(map(_name, self.variants)))

    @cached_property
    def counts(self) -> tuple[int, int]:
        """How many runs the paper's scale has, and how many more repeat the best settings."""
        plan = self.plan()
        return len(plan.configs()), len(self.names) * len(self.repeats_of(plan))

    @property
    def size(self) -> str:
        """The same for a table: ``168 + 28``, or ``24`` where nothing is repeated."""
        return " + ".join(str(count) for count in self.counts if count)

    def plan(
        self,
        scale: Scale = "paper",
        methods: Sequence[str] = (),
        override: str = "",
        /,
        **changes: Any,
    ) -> Plan:
        """Return the runs; ``methods`` keeps only those (by name or label), ``changes`` win.

        ``override`` says where the changes come from when one is wrong.
        """
        if scale not in SCALES:
            raise ConfigError(f"scale: expected one of {', '.join(SCALES)}, found {scale!r}")
        shrunk = merged(self._shrink(scale), changes)
        grid = {key: values for key, values in self._grid(scale).items() if key not in changes}
        variants = [replaced(variant, shrunk) for variant in self.chosen(methods)]
        where = origins(changes, override)
        return Plan(merged(self.base, shrunk), grid, variants, f"preset {self.name}", where)

    def repeats_of(self, plan: Plan) -> list[int]:
        """Return the seeds for repeating the best settings, without those of the plan."""
        planned = {config.seed for config in plan.configs()}
        return [seed for seed in self.repeats if seed not in planned]

    def chosen(self, methods: Sequence[str]) -> tuple[Keys, ...]:
        """Return the variants of these methods, of all if none is named."""
        names = self.names
        for method in methods:
            if method not in names:
                raise ConfigError(
                    f"preset {self.name}: there is no {method!r} among its methods "
                    f"{', '.join(names)}.{did_you_mean(method, names)}"
                )
        return tuple(v for v in self.variants if not methods or _name(v) in methods)

    def _grid(self, scale: Scale) -> dict[str, list[Any]]:
        fixed = any(key in keys for keys in (self.base, *self.variants) for key in _RATES)
        grid = {} if fixed else dict(_PROTOCOL["grids"][scale])
        if self.seeds:
            grid["seed"] = list(self.seeds if scale == "paper" else self.seeds[:2])
        return grid

    def _shrink(self, scale: Scale) -> Keys:
        if scale == "paper":
            return {}
        kind = self.base["model"].rstrip("0123456789")
        usual = _PROTOCOL["scales"][scale][kind]
        return merged(usual, self.small) if scale == "small" else usual


@cache
def presets() -> dict[str, Preset]:
    """Return every preset by name."""
    tables = [item for name in _FILES for item in read_data(name).items()]
    return {name: _preset(name, **table) for name, table in tables}


def preset(name: str) -> Preset:
    """Return one preset; an error lists the known ones."""
    known = presets()
    if name not in known:
        raise ConfigError(
            f"unknown experiment {name!r}; there are {', '.join(known)}.{did_you_mean(name, known)}"
        )
    return known[name]


def _preset(
    name: str,
    *,
    problem: str,
    keys: Keys | None = None,
    runs: Sequence[Keys] = (),
    attacks: Sequence[Keys] = ({},),
    **rest: Any,
) -> Preset:
    base = {**_PROTOCOL["common"], **_PROTOCOL["problems"][problem], **(keys or {})}
    named = runs or [{"method": method} for method in METHODS]
    attacked = [{**run, **_under(attack)} for attack in attacks for run in named]
    variants = tuple(variant for run in attacked for variant in _at_rates(run))
    return Preset(name=name, base=base, variants=variants, **rest)


def _under(attack: Keys) -> Keys:
    return {"attack": attack} if attack else {}


def _at_rates(run: Keys) -> Iterator[Keys]:
    """Yield the run once for each pair of its rates; unchanged if it has none."""
    keys = {key: value for key, value in run.items() if key != "rates"}
    for pair in run.get("rates", [()]):
        yield keys | dict(zip(_RATES, pair, strict=bool(pair)))


def _name(variant: Keys) -> str:
    return str(variant.get("label") or mixture_name(variant["method"], variant))
