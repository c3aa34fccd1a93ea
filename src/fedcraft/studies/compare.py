"""Several methods on one problem, each at its own best learning rates from the same grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from fedcraft.config.objects import plain
from fedcraft.config.overrides import MethodLike, Overrides
from fedcraft.config.toml import ConfigLike, merged, origins, read_source
from fedcraft.errors import ConfigError
from fedcraft.studies.plan import Plan
from fedcraft.studies.sweep import Observer, SweepResult, carry_out

DEFAULT_METHODS = ("fedavg", "fedavgm", "config", "craft", "craft-auto")
DEFAULT_REPEATS = 2
DEFAULT_GRID: dict[str, list[float]] = {
    "client_lr": [0.02, 0.1, 0.5],
    "server_lr": [0.03, 0.1, 0.3, 1.0],
}
# A validation part to choose the rates on; grid points that diverge do not end the comparison.
_ANY_PROBLEM: dict[str, Any] = {
    "rounds": 100,
    "evaluate_every": 10,
    "validation_fraction": 0.25,
    "nonfinite": "stop",
}
# Takes a minute: 50 clients with a few digits each, a tenth of them per round as in the paper.
_FIRST_PROBLEM: dict[str, Any] = _ANY_PROBLEM | {
    "dataset": "digits",
    "clients": 50,
    "clients_per_round": 5,
    "partition": "dirichlet",
    "alpha": 0.1,
    "batch_size": 20,
}


def compare(
    methods: MethodLike | Sequence[MethodLike] = DEFAULT_METHODS,
    config: ConfigLike = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    repeats: int = DEFAULT_REPEATS,
    out: str | Path | None = None,
    jobs: int = 0,
    observer: Observer | None = None,
    **overrides: Unpack[Overrides],
) -> SweepResult:
    """Train each method at every point of the grid and return the runs with the choice among them.

    A method is a name, a :class:`Method`, or an aggregation rule or its class. Without a
    configuration, the problem is scikit-learn's digits over 50 Dirichlet(0.1) clients, 5 a round.
    Every method gets the same ``grid`` (by default, the learning rates that are not given; ``{}``
    for the default rates of each method). The best point is chosen on the clients' validation parts
    if they have some, run again with ``repeats`` more seeds, and reported on the clients' test
    parts, averaged over the seeds.

    >>> fedcraft.compare(["craft", "fedavg"], rounds=50).table()      # doctest: +SKIP
    """
    plan = comparison_plan(methods, config, grid=grid, overrides=dict(overrides))
    seeds = further_seeds(plan, repeats)
    return carry_out(plan, seeds, out=out or "runs/compare", jobs=jobs, observer=observer)


def further_seeds(plan: Plan, repeats: int) -> list[int]:
    """Return the seeds that follow the plan's seed; none if its grid already has seeds."""
    if "seed" in plan.grid:
        return []
    first = plan.configs()[0].seed
    return [first + 1 + index for index in range(repeats)]


def comparison_plan(
    methods: MethodLike | Sequence[MethodLike] = DEFAULT_METHODS,
    config: ConfigLike = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    overrides: Mapping[str, Any] | None = None,
    override: str = "",
) -> Plan:
    """Return the runs of :func:`compare`.

    Keys given as overrides are removed from the grid, and so are those that ``config`` sets,
    unless ``grid`` asks for them; ``grid.key`` adds a list of values to it. ``override`` says
    where overrides come from.
    """
    given, source = read_source(config)
    wanted = dict(overrides or {})
    points = {k.removeprefix("grid."): v for k, v in wanted.items() if k.startswith("grid.")}
    changes = {k: v for k, v in wanted.items() if not k.startswith("grid.")}
    if "method" in changes:
        prefix = f"{override}: " if override else ""
        raise ConfigError(
            f"{prefix}method: a comparison takes its methods as a list, found method = "
            f"{changes['method']!r}. Write them without a key: craft fedavg"
        )
    base = merged(given if config is not None else _problem_for({**changes, **points}), changes)
    default = {key: values for key, values in DEFAULT_GRID.items() if key not in given}
    chosen = {**(default if grid is None else grid), **points}
    rates = {key: values for key, values in chosen.items() if key not in changes}
    several = isinstance(methods, Sequence) and not isinstance(methods, str)
    names: Sequence[Any] = methods if several else [methods]  # type: ignore[assignment]
    variants = tuple({"method": name} for name in names)
    changed = origins(wanted, override) | {"method": override}
    return Plan(base, rates, variants, source or "compare", changed)


def _problem_for(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the default problem, without a cohort larger than the clients asked for."""
    if "dataset" in changes:
        return _ANY_PROBLEM
    clients = plain(changes.get("clients"))
    numbers = clients if isinstance(clients, list) else [clients]
    small = any(type(n) is int and n < _FIRST_PROBLEM["clients_per_round"] for n in numbers)
    return {k: v for k, v in _FIRST_PROBLEM.items() if not small or k != "clients_per_round"}
