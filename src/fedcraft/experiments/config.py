"""Everything a run can be told, in one flat schema.

A key has one place and one meaning, in a TOML file, on the command line and in Python alike. What
is left out is filled in from the data set (see ``_BY_DATASET``), the partition and the method, so
that ``config.toml`` of a run directory holds every value that was used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from fedcraft.engine.settings import Device, Executor, NonFinitePolicy
from fedcraft.experiments.names import check_dataset, check_method, check_model, rates_of
from fedcraft.experiments.owners import count_owners
from fedcraft.experiments.values import check_storable, plain
from fedcraft.methods import methods, mixture_name
from fedcraft.updates import BufferPolicy, Grouping

__all__ = [
    "DERIVED_KEYS",
    "MACHINE_KEYS",
    "TABLES",
    "Config",
    "Tracking",
    "names_another",
    "not_of_partition",
]

Tracking = Literal["none", "tensorboard", "mlflow"]

Rate = Annotated[float, Field(gt=0, le=1000)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Period = Annotated[int, Field(ge=0, le=10_000_000)]
Minutes = Annotated[float, Field(ge=0, le=1e6)]

TABLES = ("local", "aggregator", "server", "model_options", "data_options")
# What changes how a run is done, but not what comes out of it.
MACHINE_KEYS = frozenset(
    {"workers", "ray_address", "data_root", "offline", "tracking", "state_memory_mb"}
    | {"checkpoint_every", "checkpoint_minutes", "keep_checkpoints"}
)

_BY_DATASET: dict[str, dict[str, Any]] = {
    "digits": {"model": "mlp", "clients": 50, "partition": "dirichlet"},
    "femnist": {"model": "mlp", "clients": 1000, "partition": "natural", "max_samples": 500},
    "cifar10": {"model": "cnn", "clients": 100, "partition": "dirichlet"},
    "cifar100": {"model": "cnn", "clients": 100, "partition": "dirichlet"},
}
_BY_PARTITION: dict[str, dict[str, Any]] = {
    "dirichlet": {"alpha": 0.1, "min_size": 20},
    "quantity": {"alpha": 0.5, "min_size": 20},
    "shards": {"shards_per_client": 2},
    "iid": {},
    "natural": {},
}
_PARTITION_KEYS = ("alpha", "min_size", "shards_per_client")
_PATHS = ("dataset", "data_root")
_COHORT = 10
# What follows from the method, the data set and the partition wherever it is not set.
DERIVED_KEYS = frozenset(
    {"client_lr", "server_lr", "clients_per_round", *_PARTITION_KEYS}
    | {key for keys in _BY_DATASET.values() for key in keys}
)


class Config(BaseModel):
    """One run: the paper's Algorithm 1 on one federation with one method."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        title="fedcraft run",
    )

    method: str = "craft"
    """Name of the method; `fedcraft methods` lists them."""
    label: str | None = Field(default=None, min_length=1, max_length=60)
    """What tables and figures call this run; the method's name if left out."""
    dataset: str = "digits"
    """Name of a data set (`fedcraft data list`) or path of a .parquet or .csv file."""
    model: str = "mlp"
    """mlp, cnn, resnet20, resnet56, resnet110, or `package.module:Name` for your own."""
    clients: Count = 50
    """Number of clients N that share the data; all owners if your own table names them."""
    clients_per_round: Count = _COHORT
    """Clients m drawn in each round, uniformly and without replacement."""
    rounds: Count = 500
    """Aggregations T."""
    client_lr: Rate = 0.05
    """Client learning rate eta_l of the first rounds; the method's own if left out."""
    server_lr: Rate = 0.1
    """Server learning rate eta_g, constant over the rounds; the method's own if left out."""
    lr_decay: Share = 0.999
    """Factor on the client rate from round to round."""
    batch_size: Count = 50
    """Samples a local step looks at; the last short batch is kept."""
    local_epochs: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Passes of a client over its training part in a round."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 77
    """Seed of every random draw, the split included."""
    split_seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Seed of the split alone; `seed` if left out."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Worker processes, 0 for one per core. The result does not depend on it."""
    device: Device = Field(
        default="auto",
        description="Where the executor vectorized trains: cpu, cuda, or auto for cuda where there "
        "is one. The other executors use the CPU.",
    )
    executor: Executor = "auto"
    """How clients are trained: serial, processes, vectorized, ray, or auto for the fastest here."""
    ray_address: str | None = Field(default=None, min_length=1)
    """Cluster of the executor ray: HOST:PORT, auto, or local; RAY_ADDRESS if left out."""

    partition: Literal["dirichlet", "iid", "shards", "quantity", "natural"] = "dirichlet"
    """How the samples are dealt out; natural for data with owners (femnist)."""
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
    train_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Share of each client's samples that is its training part; the rest is its test part."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each client's training part set aside for choosing between runs."""
    data_root: str | None = None
    """Folder with your own table, or with the data sets' Parquet files (else FEDCRAFT_DATA)."""
    offline: bool = False
    """Never fetch anything from the network."""

    layers: Grouping = "layer"
    """What counts as a layer for layer-wise rules: layer, tensor, or whole."""
    buffers: BufferPolicy = "mean"
    """What happens to buffers (running statistics), which are no geometry."""
    evaluate_every: Period = 25
    """Rounds between evaluations of all clients; 0 for the end alone."""
    evaluate_first: bool = False
    """Evaluate before the first round too."""
    evaluate_train_loss: bool = True
    """Compute the training loss over all clients when evaluating."""
    diagnostics_every: Period = 10
    """Rounds between rows of conflicts.csv (evaluation rounds always have theirs); 0 for none."""
    checkpoint_every: Period = 50
    """Rounds between checkpoints; 0 to go by checkpoint_minutes alone."""
    checkpoint_minutes: Minutes = 5.0
    """Minutes between checkpoints; 0 to go by checkpoint_every alone."""
    keep_checkpoints: Annotated[int, Field(ge=1, le=1000)] = 2
    """Checkpoints kept, the newest ones."""
    state_memory_mb: Annotated[float, Field(gt=0)] = 1024.0
    """Client states (personal models) above this many MiB live on disk."""

    nonfinite: NonFinitePolicy = "raise"
    """A client that sends NaN or Inf: raise an error, drop it from the round, or stop the run."""
    min_clients: Count = 1
    """Fewer clients than this left in a round is an error."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Chance that a sampled client never answers (simulated)."""
    target_accuracy: Share | None = None
    """Stop once the mean test accuracy reaches this."""
    patience: Count | None = None
    """Stop after this many evaluations without a better mean."""
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    """Stop at the first round that ends later than this after the start."""
    tracking: Tracking = "none"
    """Also log to tensorboard or mlflow, in the run directory."""

    local: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the method's local objective, e.g. mu of FedProx."""
    aggregator: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the method's aggregation rule, e.g. constraint of CRAFT."""
    server: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the method's server optimiser, e.g. beta of FedAvgM."""
    model_options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the model, e.g. `hidden = [200, 200]` of mlp."""
    data_options: dict[str, Any] = Field(default_factory=dict)
    """Arguments for reading a .parquet or .csv file: label, client, features, classes, ..."""

    if not TYPE_CHECKING:  # type checkers and editors know the keys from the fields

        def __init__(self, /, **given: Any) -> None:
            with _said_for_people():
                super().__init__(**given)

        # Without this mark validation would come back here and lose its context on the way.
        __init__.__pydantic_base_init__ = True

    @model_validator(mode="wrap")
    @classmethod
    def _fill_in(cls, given: Any, validate: ModelWrapValidatorHandler[Config]) -> Config:
        if not isinstance(given, dict):
            return validate(given)
        # None is what a file says by leaving the key out.
        found = {k: v for k, v in plain(given).items() if v is not None or k not in DERIVED_KEYS}
        found |= {k: os.path.expanduser(found[k]) for k in _PATHS if isinstance(found.get(k), str)}
        config = validate(with_defaults(found))
        config.model_fields_set.intersection_update(found)
        return config

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> Config:
        for table in TABLES:
            check_storable(table, getattr(self, table))
        if not info.context or info.context.get("names", True):
            check_method(self.method, {table: getattr(self, table) for table in TABLES})
            check_dataset(self.dataset, self.data_root)
            check_model(self.model)
            _check_label(self)
        _at_most(self, "clients_per_round", "clients")
        _at_most(self, "min_clients", "clients_per_round")
        for key in not_of_partition(self.partition):
            if getattr(self, key) is not None:
                users = [name for name, keys in _BY_PARTITION.items() if key in keys]
                raise ValueError(
                    f"{key}: only the partition {' or '.join(users)} uses it, but partition is "
                    f"{self.partition}. Leave {key} out or set partition = {users[0]!r}."
                )
        _check_owners(self)
        return self

    @property
    def name(self) -> str:
        """What tables call this run."""
        return self.label or mixture_name(self.method, vars(self))

    @property
    def partition_params(self) -> dict[str, Any]:
        """The parameters that this run's partitioner takes."""
        return {key: getattr(self, key) for key in _BY_PARTITION[self.partition]}

    def values(self) -> dict[str, Any]:
        """Every key that has a value, tables last: what config.toml holds."""
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {key: value for key, value in found.items() if value is not None and value != {}}

    def given(self) -> dict[str, Any]:
        """The keys that were set: the others follow if the method or the data set changes."""
        return {key: getattr(self, key) for key in self.model_fields_set}

    def but(self, **changes: Any) -> Config:
        """Return a checked copy with some keys changed, and with them what follows from them."""
        return Config(**(self.given() | changes))


@contextmanager
def _said_for_people() -> Iterator[None]:
    from fedcraft.experiments.complaints import complain  # which reads this schema

    try:
        yield
    except ValidationError as error:
        raise complain(error) from None


def not_of_partition(partition: Any) -> tuple[str, ...]:
    """Return the parameters of other partitions that this one does not take."""
    if not isinstance(partition, str) or partition not in _BY_PARTITION:
        return ()
    return tuple(key for key in _PARTITION_KEYS if key not in _BY_PARTITION[partition])


def with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """Fill in what follows from the data set, the partition and the method."""
    dataset = given.get("dataset", "digits")
    found = _BY_DATASET.get(dataset, {}) if isinstance(dataset, str) else {}
    options = given.get("data_options")
    if not found and isinstance(options, dict) and "client" in options:
        found = {"partition": "natural"} | _every_owner(given)
    filled = found | _rates(given) | given
    partition = filled.get("partition", "dirichlet")
    filled = (_BY_PARTITION.get(partition, {}) if isinstance(partition, str) else {}) | filled
    return _cohort_of(filled.get("clients")) | filled


def _rates(given: dict[str, Any]) -> dict[str, float]:
    """Return the method's rates if they are asked for: a rule of one's own is imported for them."""
    method = given.get("method", "craft")
    wanted = isinstance(method, str) and not {"client_lr", "server_lr"} <= given.keys()
    return rates_of(method) if wanted else {}


def _cohort_of(clients: Any) -> dict[str, int]:
    """Let a small federation take part as a whole; anything but a number is told elsewhere."""
    return {"clients_per_round": clients} if type(clients) is int and 0 < clients < _COHORT else {}


def _every_owner(given: dict[str, Any]) -> dict[str, int]:
    """Let every owner of a table be a client, unless a number or another partition is given."""
    if "clients" in given or given.get("partition", "natural") != "natural":
        return {}
    dataset, client = given.get("dataset"), given["data_options"]["client"]
    owners = count_owners(dataset, client, given.get("data_root"))
    return {} if owners is None else {"clients": owners}


def names_another(label: str, method: str) -> bool:
    """Tell whether tables would take a run of ``method`` with this label for another method."""
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
            f"label: {label!r} is another method than {config.method!r}, which this run is of, and "
            "tables would mix the two up. Choose a label of your own or leave it out."
        )


def _check_owners(config: Config) -> None:
    if config.max_samples is not None and config.dataset != "femnist":
        raise ValueError(
            f"max_samples: only femnist has writers to draw from, but dataset is "
            f"{config.dataset!r}. Leave max_samples out."
        )
    owned = config.dataset == "femnist" or "client" in config.data_options
    if config.partition == "natural" and not owned:
        raise ValueError(
            f"partition: natural needs data with owners, but {config.dataset!r} has none. Set "
            'partition = "dirichlet", or name the column with the clients as data_options.client.'
        )


def _at_most(config: Config, small: str, large: str) -> None:
    if getattr(config, small) > getattr(config, large):
        raise ValueError(
            f"{small}: expected at most {large} = {getattr(config, large)}, found "
            f"{getattr(config, small)}. Lower {small} or raise {large}."
        )
