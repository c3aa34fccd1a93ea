"""The paper's experiments as plans, at three scales.

``paper`` is the protocol of Appendix C; ``small`` keeps the data and shortens rounds, clients and
grid; ``tiny`` is a smoke test of the whole path. Smaller scales do not predict the paper's numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fedcraft.errors import ConfigError
from fedcraft.experiments.files import merged
from fedcraft.experiments.names import did_you_mean
from fedcraft.experiments.plan import Plan

__all__ = ["METHODS", "PAPER_GRID", "SCALES", "Preset", "Scale", "preset", "presets"]

Scale = Literal["tiny", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
Keys = Mapping[str, Any]

METHODS = (
    *("fedavg", "fedprox", "fednova", "fedavgm", "fedadagrad", "fedadam", "fedyogi"),
    *("afl", "fedfv", "fedmgda+", "qfedavg", "fedlf", "config", "craft"),
)
"""The rows of the paper's Table 1."""

PAPER_GRID = {"client_lr": [0.005, 0.01, 0.05, 0.1], "server_lr": [0.01, 0.1, 1.0]}
_SMALL_GRID = {"client_lr": [0.05, 0.1], "server_lr": [0.1, 1.0]}
_TINY_GRID = {"client_lr": [0.05], "server_lr": [0.1]}
_GRIDS: dict[Scale, dict[str, list[float]]] = {
    "paper": PAPER_GRID,
    "small": _SMALL_GRID,
    "tiny": _TINY_GRID,
}
_SEEDS = (77, 78, 79)

# A diverged grid point is a result like any other: it ends its run, not the sweep.
_COMMON = {"rounds": 500, "lr_decay": 0.999, "evaluate_every": 25, "seed": 77, "nonfinite": "stop"}
_FEMNIST = _COMMON | {
    "dataset": "femnist",
    "model": "mlp",
    "clients": 1000,
    "clients_per_round": 10,
    "batch_size": 50,
}
_TINY: dict[str, Any] = {
    "rounds": 2,
    "clients": 10,
    "clients_per_round": 3,
    "evaluate_every": 1,
    "diagnostics_every": 1,
}
_TINY_DEEP = {"samples": 80, "clients": 4, "clients_per_round": 2}
_TINY_MODELS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "cnn": {"samples": 240},
    "resnet20": _TINY_DEEP,
    "resnet56": _TINY_DEEP,
    "resnet110": _TINY_DEEP,
}


@dataclass(frozen=True)
class Preset:
    """One table or figure of the paper.

    ``published`` names the table in :mod:`fedcraft.experiments.published` to set beside ours. The
    best setting of every method is run again with the seeds of ``repeats``.
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

    def plan(self, scale: Scale = "paper", methods: Sequence[str] = (), **changes: Any) -> Plan:
        """Return the runs; ``methods`` keeps only those (by name or label), ``changes`` win."""
        if scale not in SCALES:
            raise ConfigError(f"scale: expected one of {', '.join(SCALES)}, found {scale!r}")
        grid: dict[str, Any] = dict(_GRIDS[scale]) if self.rates else {}
        if self.seeds:
            grid["seed"] = list(self.seeds if scale == "paper" else self.seeds[:2])
        base = merged(merged(self.base, self._shrink(scale)), changes)
        return Plan(base, grid, self._chosen(methods), f"preset {self.name}")

    def _shrink(self, scale: Scale) -> Keys:
        if scale == "paper":
            return {}
        if scale == "small":
            return self.small
        return _TINY | _TINY_MODELS[self.base["model"]]

    def _chosen(self, methods: Sequence[str]) -> tuple[Keys, ...]:
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


def presets() -> dict[str, Preset]:
    """Return every preset by name."""
    return {preset.name: preset for preset in _all()}


def preset(name: str) -> Preset:
    """Return one preset, or say which there are."""
    known = presets()
    if name not in known:
        raise ConfigError(
            f"unknown experiment {name!r}; there are {', '.join(known)}.{did_you_mean(name, known)}"
        )
    return known[name]


def _all() -> list[Preset]:
    return [
        _table_femnist(),
        *_tables_cifar(),
        *_dittos(),
        *_seeds(),
        _history(),
        *_ablations(),
        _variants(),
    ]


def _methods(names: Sequence[str]) -> tuple[Keys, ...]:
    return tuple({"method": name} for name in names)


def _cifar(dataset: str, model: str) -> Keys:
    """Appendix C: 10 of 100 clients, batches of 50 for the CNN; 100 of 1000, 20 for ResNets."""
    sizes = (100, 10, 50) if model == "cnn" else (1000, 100, 20)
    keys = dict(zip(("clients", "clients_per_round", "batch_size"), sizes, strict=True))
    split = {"partition": "dirichlet", "alpha": 0.1, "min_size": 20}
    return _COMMON | {"dataset": dataset, "model": model} | keys | split


def _small(model: str) -> Keys:
    if model == "mlp":
        return {"rounds": 100, "clients": 200}
    if model == "cnn":
        return {"rounds": 50, "evaluate_every": 10}
    return {"rounds": 20, "clients": 100, "clients_per_round": 10, "evaluate_every": 5}


def _table_femnist() -> Preset:
    return Preset(
        "table-femnist",
        "Table 1, left: FEMNIST and MLP, all methods over the grid of rates",
        _FEMNIST,
        _methods(METHODS),
        repeats=_SEEDS[1:],
        published="femnist-mlp",
        small=_small("mlp"),
    )


def _tables_cifar() -> list[Preset]:
    return [
        Preset(
            f"table-{dataset}-{model}",
            f"Table 1 and Appendix D: {dataset} and {model}, all methods over the grid of rates",
            _cifar(dataset, model),
            _methods(METHODS),
            published=f"{dataset}-{model}",
            small=_small(model),
        )
        for dataset in ("cifar10", "cifar100")
        for model in ("cnn", "resnet20", "resnet56", "resnet110")
    ]


def _dittos() -> list[Preset]:
    return [
        Preset(
            f"ditto-{dataset}",
            f"Section 5.4: Ditto with and without CRAFT over the grid of rates, {dataset} and CNN",
            _cifar(dataset, "cnn"),
            _methods(("ditto", "ditto+craft")),
            small=_small("cnn"),
        )
        for dataset in ("cifar10", "cifar100")
    ]


# The paper does not tell the rates of these figures; these are our guesses within its grid.
_FIXED_RATES: dict[str, tuple[float, float]] = {
    "fedavg": (0.1, 1.0),
    "fednova": (0.1, 1.0),
    "fedavgm": (0.1, 0.1),
    "fedfv": (0.1, 1.0),
    "fedlf": (0.1, 1.0),
    "fedlf-history": (0.1, 1.0),
    "config": (0.05, 0.1),
    "craft": (0.05, 0.1),
}


def _at_fixed_rates(names: Sequence[str]) -> tuple[Keys, ...]:
    rates = {name: _FIXED_RATES[name] for name in names}
    return tuple(
        {"method": name, "client_lr": client, "server_lr": server}
        for name, (client, server) in rates.items()
    )


def _seeds() -> list[Preset]:
    return [
        Preset(
            f"seeds-{dataset}-cnn",
            f"Appendix D.2: three seeds, {dataset} and CNN, at fixed rates",
            _cifar(dataset, "cnn"),
            _at_fixed_rates(("fedavg", "fednova", "fedavgm", "fedfv", "config", "craft")),
            rates=False,
            seeds=_SEEDS,
            published=f"{dataset}-cnn",
            small=_small("cnn"),
        )
        for dataset in ("cifar10", "cifar100")
    ]


def _history() -> Preset:
    return Preset(
        "history",
        "Appendix D.1: CRAFT against FedLF with and without history, CIFAR-10 and CNN",
        _cifar("cifar10", "cnn"),
        _at_fixed_rates(("fedlf", "fedlf-history", "craft")),
        rates=False,
        small=_small("cnn"),
    )


_ABLATIONS: dict[str, Keys] = {
    "craft": {},
    "craft-whole": {"layers": "whole"},
    "craft-no-reference": {"aggregator": {"reference": "none"}},
    "craft-moving-average": {"aggregator": {"reference": "moving_average"}},
    "craft-uniform": {"aggregator": {"target": "uniform"}},
    "craft-at-least": {"aggregator": {"constraint": "at_least"}},
    "craft-at-least-uniform": {"aggregator": {"constraint": "at_least", "target": "uniform"}},
    "craft-no-active-set": {"aggregator": {"tau": 0.0}},
    "layer-momentum": {"method": "layer-momentum"},  # the control: no conflict resolution at all
}


def _ablations() -> list[Preset]:
    common = {"method": "craft", "client_lr": 0.05, "server_lr": 0.1}
    variants = tuple({**common, "label": k, **v} for k, v in _ABLATIONS.items())
    settings = (("femnist", "mlp", _FEMNIST), ("cifar10-cnn", "cnn", _cifar("cifar10", "cnn")))
    return [
        Preset(
            f"ablation-{name}",
            f"Which part of CRAFT does what, {name}: beyond the paper, three seeds",
            base,
            variants,
            rates=False,
            seeds=_SEEDS,
            small=_small(model),
        )
        for name, model, base in settings
    ]


# What a method's documents leave open, tried where our number is not the paper's: the keys, and the
# pairs of rates at which that variant can be expected to be at its best.
_DOCUMENTED: dict[str, tuple[Keys, tuple[tuple[float, float], ...]]] = {
    "fedavgm-beta-0.5": (
        {"method": "fedavgm", "server": {"beta": 0.5}},
        ((0.05, 1.0), (0.1, 1.0)),
    ),
    "fedavgm-nesterov": (
        {"method": "fedavgm", "server": {"nesterov": True}},
        ((0.01, 1.0), (0.05, 0.1), (0.05, 1.0)),
    ),
    "fedavgm-dampened": (
        {"method": "fedavgm", "server": {"dampened": True}},
        ((0.05, 1.0), (0.1, 1.0)),
    ),
    "fedadagrad-tau-0.01": (
        {"method": "fedadagrad", "server": {"tau": 0.01}},
        ((0.01, 0.01), (0.05, 0.01), (0.05, 0.1)),
    ),
    "fedadagrad-tau-0.1": (
        {"method": "fedadagrad", "server": {"tau": 0.1}},
        ((0.05, 0.1), (0.1, 0.1), (0.05, 1.0)),
    ),
    "afl-gamma-0.01": (
        {"method": "afl", "aggregator": {"gamma": 0.01}},
        ((0.05, 1.0), (0.1, 1.0)),
    ),
    "afl-by-position": (
        {"method": "afl", "aggregator": {"indexing": "position"}},
        ((0.05, 1.0), (0.1, 1.0)),
    ),
    "afl-last-model": (
        {"method": "afl", "aggregator": {"gamma": 0.01, "evaluate_average": False}},
        ((0.05, 1.0), (0.1, 1.0)),
    ),
    "fedmgda+-mean-norm": (
        {"method": "fedmgda+", "aggregator": {"scale": "mean_norm"}},
        ((0.05, 1.0), (0.1, 1.0)),
    ),
    "fedmgda+-epsilon-1": (
        {"method": "fedmgda+", "aggregator": {"epsilon": 1.0}},
        ((0.01, 0.1), (0.05, 0.1)),
    ),
    "fedfv-paper": (
        {"method": "fedfv", "aggregator": {"external": "paper"}},
        ((0.05, 1.0), (0.1, 1.0)),
    ),
    "fedfv-tau-10": (
        {"method": "fedfv", "aggregator": {"tau": 10}},
        ((0.05, 1.0), (0.1, 1.0)),
    ),
}


def _variants() -> Preset:
    runs = (
        {"label": label, **keys, "client_lr": client, "server_lr": server}
        for label, (keys, pairs) in _DOCUMENTED.items()
        for client, server in pairs
    )
    return Preset(
        "variants-femnist",
        "Documented variants of methods whose FEMNIST numbers are not the paper's",
        _FEMNIST,
        tuple(runs),
        rates=False,
        small=_small("mlp"),
    )
