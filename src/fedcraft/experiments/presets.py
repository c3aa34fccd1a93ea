"""The paper's experiments by name, and with them those that go beyond it."""

from __future__ import annotations

from collections.abc import Sequence

from fedcraft.errors import ConfigError
from fedcraft.experiments.beyond import beyond_the_paper
from fedcraft.experiments.names import did_you_mean
from fedcraft.experiments.preset import Preset, at_rates
from fedcraft.experiments.protocol import (
    CNN_RATES,
    FEMNIST,
    METHODS,
    SCALES,
    SEEDS,
    Keys,
    Scale,
    cifar,
)

__all__ = ["METHODS", "SCALES", "Preset", "Scale", "preset", "presets"]

_DATASETS = ("cifar10", "cifar100")
# Where the paper prints the numbers: Table 1 is in the text, Tables 2 to 4 are in Appendix D.
_TABLES = {
    ("cifar10", "cnn"): "Table 4",
    ("cifar10", "resnet20"): "Tables 1 and 2",
    ("cifar10", "resnet56"): "Table 2",
    ("cifar10", "resnet110"): "Table 2",
    ("cifar100", "cnn"): "Table 4",
    ("cifar100", "resnet20"): "Table 3",
    ("cifar100", "resnet56"): "Table 3",
    ("cifar100", "resnet110"): "Table 3",
}


def presets() -> dict[str, Preset]:
    """Return every preset by name."""
    return {preset.name: preset for preset in (*_the_paper(), *beyond_the_paper())}


def preset(name: str) -> Preset:
    """Return one preset, or say which there are."""
    known = presets()
    if name not in known:
        raise ConfigError(
            f"unknown experiment {name!r}; there are {', '.join(known)}.{did_you_mean(name, known)}"
        )
    return known[name]


def _the_paper() -> list[Preset]:
    return [_table_femnist(), *_tables_cifar(), *_dittos(), *_seeds(), _history()]


def _methods(names: Sequence[str]) -> tuple[Keys, ...]:
    return tuple({"method": name} for name in names)


def _table_femnist() -> Preset:
    return Preset(
        "table-femnist",
        "Tables 1 and 4: FEMNIST and MLP, all methods over the grid of rates",
        FEMNIST,
        _methods(METHODS),
        repeats=SEEDS[1:],
        published="femnist-mlp",
    )


def _tables_cifar() -> list[Preset]:
    return [
        Preset(
            f"table-{dataset}-{model}",
            f"{place}: {dataset} and {model}, all methods over the grid of rates",
            cifar(dataset, model),
            _methods(METHODS),
            published=f"{dataset}-{model}",
        )
        for (dataset, model), place in _TABLES.items()
    ]


def _dittos() -> list[Preset]:
    return [
        Preset(
            f"ditto-{dataset}",
            f"Section 5.4: Ditto with and without CRAFT over the grid of rates, {dataset} and CNN",
            cifar(dataset, "cnn"),
            _methods(("ditto", "ditto+craft")),
        )
        for dataset in _DATASETS
    ]


def _at_fixed_rates(names: Sequence[str]) -> tuple[Keys, ...]:
    return tuple(at_rates(name, *CNN_RATES[name]) for name in names)


def _seeds() -> list[Preset]:
    return [
        Preset(
            f"seeds-{dataset}-cnn",
            f"Appendix D.2: three seeds, {dataset} and CNN, at fixed rates",
            cifar(dataset, "cnn"),
            _at_fixed_rates(("fedavg", "fednova", "fedavgm", "fedfv", "config", "craft")),
            rates=False,
            seeds=SEEDS,
            published=f"{dataset}-cnn",
        )
        for dataset in _DATASETS
    ]


def _history() -> Preset:
    return Preset(
        "history",
        "Appendix D.1: CRAFT against FedLF with and without history, CIFAR-10 and CNN",
        cifar("cifar10", "cnn"),
        _at_fixed_rates(("fedlf", "fedlf-history", "craft")),
        rates=False,
    )
