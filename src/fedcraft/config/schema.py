"""The configuration of a run: one flat schema.

A key has one place and one meaning, in a TOML file, on the command line and in Python alike. Keys
that are left out are filled in from the data set (see ``_BY_DATASET``), the partition and the
method, so that ``config.toml`` of a run directory holds every value that was used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from fedcraft.config.checks import (
    METHOD_KEYS,
    check_attack,
    check_dataset,
    check_method,
    check_model,
    rates_of,
)
from fedcraft.config.objects import Objects, check_storable, describe, is_custom, plain
from fedcraft.config.paths import count_owners
from fedcraft.config.settings import COHORT, Count, Seed, Settings, at_most
from fedcraft.data import partitioners
from fedcraft.errors import ConfigError
from fedcraft.methods import methods, mixture_name
from fedcraft.methods.lookup import clock_of

Tracking = Literal["none", "tensorboard", "mlflow"]
PartitionName = Literal["dirichlet", "iid", "shards", "quantity", "natural"]

TABLES = (
    *("local", "aggregator", "server", "guard", "attack", "model_options", "data_options"),
    *("secure", "privacy", "clock"),
)
# Keys that change how a run is done, but not its result.
MACHINE_KEYS = frozenset(
    {"workers", "start_method", "ray_address", "evaluate_batch", "data_root", "offline", "tracking"}
    | {"checkpoint_every", "checkpoint_minutes", "keep_checkpoints", "state_memory_mb"}
)

_BY_DATASET: dict[str, dict[str, Any]] = {
    "digits": {"model": "mlp", "clients": 50, "partition": "dirichlet"},
    "femnist": {"model": "mlp", "clients": 1000, "partition": "natural", "max_samples": 500},
    "cifar10": {"model": "cnn", "clients": 100, "partition": "dirichlet"},
    "cifar100": {"model": "cnn", "clients": 100, "partition": "dirichlet"},
}
_BY_PARTITION = partitioners()
_PARTITION_KEYS = ("alpha", "min_size", "shards_per_client")
_PATHS = ("dataset", "data_root")


class Config(Settings):
    """One run: the paper's Algorithm 1 on one federation with one method."""

    model_config = ConfigDict(title="fedcraft run")
    derived_keys: ClassVar[frozenset[str]] = frozenset(
        {*METHOD_KEYS, "clients_per_round", *_PARTITION_KEYS}
        | {key for keys in _BY_DATASET.values() for key in keys}
    )

    method: str = "craft"
    """Name of the method; `fedcraft methods` lists them."""
    label: str | None = Field(default=None, min_length=1, max_length=60)
    """What tables and figures call this run; the method's name if left out."""
    dataset: str = "digits"
    """Name of a data set (`fedcraft data list`) or path of a .parquet or .csv file."""
    model: str = "mlp"
    """mlp, cnn, resnet20, resnet56, resnet110, or `package.module:Name` for a custom model."""
    clients: Count = 50
    """Number of clients N that share the data; all owners if a table names them."""

    partition: PartitionName = "dirichlet"
    """How the samples are divided among clients; natural for data with owners (femnist)."""
    alpha: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Concentration of the partitions dirichlet (0.1) and quantity (0.5); small is uneven."""
    min_size: Count | None = None
    """Least samples per client for dirichlet and quantity (20), kept by moving samples."""
    shards_per_client: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Shards of sorted labels each client gets in the partition shards (2)."""
    max_samples: Count | None = None
    """femnist only: draw writers among those with at most this many samples (500)."""
    samples: Annotated[int, Field(ge=2)] | None = None
    """Use only this many samples of the data set, drawn at random; all if left out."""
    split_seed: Seed | None = None
    """Seed of the split only; `seed` if left out."""
    train_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Share of each client's samples that is its training part; the rest is its test part."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each client's training part set aside for choosing between runs."""
    data_root: str | None = None
    """Folder with a table of yours, or with the data sets' Parquet files (else FEDCRAFT_DATA)."""
    offline: bool = False
    """Never fetch anything from the network."""
    tracking: Tracking = "none"
    """Also log to tensorboard or mlflow, in the run directory."""

    local: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the method's local objective, e.g. mu of FedProx."""
    aggregator: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the method's aggregation rule, e.g. constraint of CRAFT."""
    server: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the method's server optimiser, e.g. beta of FedAvgM."""
    guard: dict[str, Any] = Field(default_factory=dict)
    """What stands before the rule against hostile clients: name (`default` is good), parameters."""
    attack: dict[str, Any] = Field(default_factory=dict)
    """What hostile clients do, simulated: name, share of the clients, parameters."""
    model_options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the model, e.g. `hidden = [200, 200]` of mlp."""
    data_options: dict[str, Any] = Field(default_factory=dict)
    """Arguments for reading a .parquet or .csv file: label, client, features, classes, ..."""

    @classmethod
    def complete(cls, given: dict[str, Any]) -> tuple[dict[str, Any], Objects]:
        """Name the objects and fill in what follows from data set, partition and method."""
        named, objects = describe(given)
        return _with_defaults(plain(named)), objects

    def check(self, *, names: bool) -> None:
        """Raise ValueError if keys contradict each other; ``names``: also if a name is unknown."""
        for table in TABLES:
            check_storable(table, getattr(self, table))
        if names:
            check_method(self.method, {table: getattr(self, table) for table in TABLES})
            check_dataset(self.dataset, self.data_root)
            check_model(self.model)
            check_attack(self.attack)
            _check_label(self)
        at_most(self, "clients_per_round", "clients")
        super().check(names=names)
        for key in not_of_partition(self.partition):
            if getattr(self, key) is not None:
                users = [name for name, keys in _BY_PARTITION.items() if key in keys]
                raise ValueError(
                    f"{key}: only the partition {' or '.join(users)} uses it, but partition is "
                    f"{self.partition}. Leave {key} out or set partition = {users[0]!r}."
                )
        _check_owners(self)

    @property
    def name(self) -> str:
        """What tables call this run."""
        return self.label or mixture_name(self.method, vars(self))

    @property
    def partition_params(self) -> dict[str, Any]:
        """The parameters that this run's partitioner takes."""
        return {key: getattr(self, key) for key in _BY_PARTITION[self.partition]}

    @property
    def objects(self) -> Mapping[str, Any]:
        """The Python objects that were passed in place of names."""
        return self._objects

    def with_objects(self, objects: Mapping[str, Any]) -> Config:
        """Return a configuration read from a file with the objects that it was made with."""
        kept = {key: value for key, value in self.given().items() if not is_custom(value)}
        again = Config(**{**kept, **objects})
        for key, value in self.values().items():
            if getattr(again, key) != value:
                raise ConfigError(
                    f"{key}: expected the object that this run was started with, {value}, found "
                    f"{getattr(again, key) or 'none'}. Pass the same one."
                )
        return again

    def values(self) -> dict[str, Any]:
        """Every key that has a value, in the order of ``KEYS``: what config.toml holds."""
        found = {key: getattr(self, key) for key in KEYS}
        return {key: value for key, value in found.items() if value is not None and value != {}}


_OWN = [key for key in Config.model_fields if key not in Settings.model_fields]
KEYS = tuple(key for key in (*_OWN, *Settings.model_fields) if key not in TABLES) + TABLES
"""Every key: what is trained on which data, how it is trained, and the tables."""


def not_of_partition(partition: Any) -> tuple[str, ...]:
    """Return the parameters of other partitions that this one does not take."""
    if not isinstance(partition, str) or partition not in _BY_PARTITION:
        return ()
    return tuple(key for key in _PARTITION_KEYS if key not in _BY_PARTITION[partition])


def _with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    given |= {k: os.path.expanduser(given[k]) for k in _PATHS if isinstance(given.get(k), str)}
    dataset = given.get("dataset", "digits")
    found = _BY_DATASET.get(dataset, {}) if isinstance(dataset, str) else {}
    options = given.get("data_options")
    if not found and isinstance(options, dict) and "client" in options:
        found = {"partition": "natural"} | _every_owner(given)
    filled = found | _rates(given) | given | _clock(given)
    partition = filled.get("partition", "dirichlet")
    filled = (_BY_PARTITION.get(partition, {}) if isinstance(partition, str) else {}) | filled
    return _cohort_of(filled.get("clients")) | filled


def _rates(given: dict[str, Any]) -> dict[str, Any]:
    """Return the method's rates if they are needed: a custom rule is imported for them."""
    method = given.get("method", "craft")
    wanted = isinstance(method, str) and not {"client_lr", "server_lr"} <= given.keys()
    return rates_of(method) if wanted else {}


def _clock(given: dict[str, Any]) -> dict[str, Any]:
    """Return the table of the virtual clock, with the mode of an asynchronous method."""
    method, table = given.get("method", "craft"), given.get("clock", {})
    if not isinstance(method, str) or not isinstance(table, dict):
        return {}
    clock = clock_of(method, table)
    return {"clock": clock} if clock else {}


def _cohort_of(clients: Any) -> dict[str, int]:
    """Let all clients of a small federation take part; wrong types are reported by the schema."""
    return {"clients_per_round": clients} if type(clients) is int and 0 < clients < COHORT else {}


def _every_owner(given: dict[str, Any]) -> dict[str, int]:
    """Let every owner of a table be a client, unless a number or another partition is given."""
    if "clients" in given or given.get("partition", "natural") != "natural":
        return {}
    dataset, client = given.get("dataset"), given["data_options"]["client"]
    owners = count_owners(dataset, client, given.get("data_root"))
    return {} if owners is None else {"clients": owners}


def names_another(label: str, method: str) -> bool:
    """Tell whether tables would mistake a run of ``method`` with this label for another method."""
    own = mixture_name(method, {})
    others = [row for row in methods() if row.name != own]
    return label.strip().casefold() in {n.casefold() for m in others for n in (m.name, m.title)}


def _check_label(config: Config) -> None:
    label = config.label
    if label is None:
        return
    if not label.isprintable():
        raise ValueError(
            f"label: expected one line of printable characters, found {label!r}. Leave out line "
            "breaks, tabs and other control characters."
        )
    if names_another(label, config.method):
        raise ValueError(
            f"label: {label!r} is a method, but not {config.method!r}, the method of this run, and "
            "tables would mix the two up. Choose another label or leave it out."
        )


def _check_owners(config: Config) -> None:
    if config.max_samples is not None and config.dataset != "femnist":
        raise ValueError(
            f"max_samples: only femnist has writers to draw from, but dataset is "
            f"{config.dataset!r}. Leave out max_samples."
        )
    dataset = config.objects.get("dataset")
    custom = is_custom(config.dataset) and (dataset is None or dataset.owners is not None)
    owned = custom or config.dataset == "femnist" or "client" in config.data_options
    if config.partition == "natural" and not owned:
        raise ValueError(
            f"partition: natural needs data with owners, but {config.dataset!r} has none. Set "
            'partition = "dirichlet", or name the column with the clients as data_options.client.'
        )
