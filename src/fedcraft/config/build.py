"""Builds what a configuration names: federation, method, model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from fedcraft.attacks import Attack, attack
from fedcraft.config.objects import require_object
from fedcraft.config.paths import located
from fedcraft.config.schema import Config
from fedcraft.data import Dataset, Federation, federate, load
from fedcraft.errors import ConfigError, InputError
from fedcraft.methods import Method, method
from fedcraft.methods.method import PARTS
from fedcraft.models import build, models
from fedcraft.models.probe import require_logits
from fedcraft.seeds import generator


def build_federation(config: Config) -> Federation:
    """Load the data set and divide it among clients; the same keys give the same split."""
    seed = config.seed if config.split_seed is None else config.split_seed
    dataset = _sampled(_load(config, seed), config.samples, seed)
    if config.partition == "natural" and dataset.owners is not None:
        _compare_owners(config, np.unique(dataset.owners).size)
    return federate(
        dataset,
        config.partition,
        config.clients,
        seed=seed,
        train_fraction=config.train_fraction,
        validation_fraction=config.validation_fraction,
        **config.partition_params,
    )


def build_method(config: Config) -> Method:
    """Return the method with its overrides and this run's rates."""
    parts = {}
    for table in PARTS:
        parts[table] = config.objects.get(table) or getattr(config, table) or None
        require_object(table, parts[table])
    return method(
        config.method,
        **parts,
        client_lr=config.client_lr,
        server_lr=config.server_lr,
    )


def build_attack(config: Config) -> Attack | None:
    """Return what the hostile clients do, None if there are none."""
    return attack(**config.attack) if config.attack else None


def build_model(config: Config, dataset: Dataset) -> nn.Module:
    """Return the freshly initialised model for this data set."""
    problem: dict[str, Any] = {"input_shape": dataset.input_shape, "classes": dataset.classes}
    found = config.objects.get("model", config.model)
    require_object("model", found)
    module = found if isinstance(found, nn.Module) else _built(config, found, problem)
    if config.model not in models():
        require_logits(config.model, module, **problem)
    return module


def _built(config: Config, found: Any, problem: Mapping[str, Any]) -> nn.Module:
    """Build a model by name; an argument that does not fit is reported as the key that set it."""
    try:
        return build(found, **problem, seed=config.seed, **config.model_options)
    except InputError as error:
        key, _, text = str(error).partition(": ")
        if key == "input_shape":
            raise ConfigError(
                f"model: {config.model} does not fit the samples of {config.dataset}: {text}. "
                'Set model = "mlp", which takes any shape, or choose another data set'
            ) from None
        if key in config.model_options:
            raise ConfigError(f"model_options.{error}") from None
        raise


def _load(config: Config, seed: int) -> Dataset:
    if "dataset" in config.objects:
        dataset: Dataset = config.objects["dataset"]
        return dataset
    require_object("dataset", config.dataset)
    options: dict[str, Any] = dict(config.data_options)
    if config.dataset == "femnist":
        options |= {"clients": config.clients, "max_samples": config.max_samples, "seed": seed}
    name = located(config.dataset, config.data_root)
    return load(name, root=config.data_root, offline=config.offline or None, **options)


def _compare_owners(config: Config, owners: int) -> None:
    """Refuse more clients than owners; warn if a user's table is not used completely."""
    drawn = "" if config.samples is None else f" among the {config.samples} samples drawn"
    if config.clients > owners:
        raise ConfigError(
            f"clients: expected at most the {owners} owners of {config.dataset}{drawn}, found "
            f"{config.clients}. Lower clients{' or raise samples' if drawn else ''}."
        )
    if config.clients < owners and "client" in config.data_options:
        warnings.warn(
            f"{owners - config.clients} of the {owners} owners of {config.dataset}{drawn} are left "
            f"out: clients is {config.clients}. Leave clients out to take all.",
            stacklevel=3,
        )


def _sampled(dataset: Dataset, samples: int | None, seed: int) -> Dataset:
    if samples is None:
        return dataset
    if samples > len(dataset):
        raise ConfigError(
            f"samples: expected at most the {len(dataset)} of {dataset.name!r}, found {samples}. "
            "Lower samples or leave it out."
        )
    chosen = generator(seed, "samples").choice(len(dataset), samples, replace=False)
    return dataset.subset(np.sort(chosen))
