"""One experiment: its runs at the paper's scale and at two smaller ones.

``paper`` is the protocol of Appendix C; ``small`` keeps the data and shortens rounds, clients and
grid; ``tiny`` is a smoke test of the whole path. Smaller scales do not predict the paper's numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedcraft.errors import ConfigError
from fedcraft.experiments.files import merged
from fedcraft.experiments.names import did_you_mean
from fedcraft.experiments.plan import Plan, replaced
from fedcraft.experiments.protocol import GRIDS, SCALES, Keys, Scale, small, tiny

__all__ = ["Preset", "at_rates"]


@dataclass(frozen=True)
class Preset:
    """One table or figure of the paper.

    ``published`` names the table in :mod:`fedcraft.experiments.published` to set beside ours. The
    best setting of every method is run again with the seeds of ``repeats``. ``small`` changes the
    model's usual small scale.
    """

    name: str
    about: str
    base: Keys
    variants: tuple[Keys, ...]
    rates: bool = True
    seeds: tuple[int, ...] = ()
    repeats: tuple[int, ...] = ()
    published: str | None = None
    small: Keys = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The methods, or what stands for them, in the order of the table."""
        return list(dict.fromkeys(map(_name, self.variants)))

    @property
    def counts(self) -> tuple[int, int]:
        """How many runs the paper's scale has, and how many more repeat the best settings."""
        plan = self.plan()
        return len(plan.configs()), len(self.names) * len(self.repeats_of(plan))

    @property
    def size(self) -> str:
        """The same for a table: ``168 + 28``, or ``24`` where nothing is repeated."""
        return " + ".join(str(count) for count in self.counts if count)

    def plan(self, scale: Scale = "paper", methods: Sequence[str] = (), /, **changes: Any) -> Plan:
        """Return the runs; ``methods`` keeps only those (by name or label), ``changes`` win."""
        if scale not in SCALES:
            raise ConfigError(f"scale: expected one of {', '.join(SCALES)}, found {scale!r}")
        grid: dict[str, Any] = dict(GRIDS[scale]) if self.rates else {}
        if self.seeds:
            grid["seed"] = list(self.seeds if scale == "paper" else self.seeds[:2])
        smaller = merged(self._shrink(scale), changes)
        left = {key: values for key, values in grid.items() if key not in changes}
        variants = [replaced(variant, smaller) for variant in self.chosen(methods)]
        return Plan(merged(self.base, smaller), left, variants, f"preset {self.name}")

    def repeats_of(self, plan: Plan) -> list[int]:
        """Return the seeds to repeat the best settings with that the plan does not have itself."""
        planned = {config.seed for config in plan.configs()}
        return [seed for seed in self.repeats if seed not in planned]

    def _shrink(self, scale: Scale) -> Keys:
        if scale == "paper":
            return {}
        if scale == "small":
            return merged(small(self.base["model"]), self.small)
        return tiny(self.base["model"])

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


def _name(variant: Keys) -> str:
    return str(variant.get("label", variant["method"]))


def at_rates(method: str, client: float, server: float, **keys: Any) -> Keys:
    """Return a variant: a method at one pair of rates."""
    return {"method": method, "client_lr": client, "server_lr": server, **keys}
