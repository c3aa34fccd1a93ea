"""The settings of training: the keys that the engine needs.

:class:`fedcraft.Config` adds the method, the data and the model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from fedcraft.config.clock import check_clock
from fedcraft.config.messages import config_error
from fedcraft.config.objects import Objects, plain
from fedcraft.errors import FedcraftError, InputError
from fedcraft.privacy import Privacy
from fedcraft.secure import Secure
from fedcraft.updates import BufferPolicy, Grouping

ExecutorName = Literal["auto", "serial", "processes", "vectorized", "ray"]
NonFinitePolicy = Literal["raise", "drop", "stop"]
StartMethod = Literal["auto", "fork", "forkserver", "spawn"]
Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["float32", "bfloat16"]
ModelAverageName = Literal["none", "ema", "tail"]
Schedule = Literal["constant", "linear", "cosine"]
LookAhead = Annotated[float, Field(ge=0, le=10)] | Literal["auto"]

Rate = Annotated[float, Field(gt=0, le=1000)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Period = Annotated[int, Field(ge=0, le=10_000_000)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]

COHORT = 10
_IDENTITY = (
    "clients_per_round", "client_lr", "server_lr", "lr_decay", "local_epochs", "batch_size",
    "seed", "layers", "buffers", "dropout", "nonfinite",
)  # fmt: skip
_AS_BEFORE: dict[str, tuple[Any, ...]] = {
    "server_lr_schedule": ("constant",),
    "look_ahead": (None, 0.0),
    "model_average": ("none",),
    "precision": ("float32",),
    "secure": ({},),
    "privacy": ({},),
    "clock": ({},),
}
"""Keys that 0.1.0 did not have, with the values that change nothing."""


class Settings(BaseModel):
    """One run of the paper's Algorithm 1 with T = ``rounds`` aggregations.

    The released loop runs T + 1 of them (t = 0..T); ask for ``rounds=501`` to repeat that.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )
    derived_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys whose default follows from other keys."""

    _objects: Objects = PrivateAttr(default_factory=Objects)

    rounds: Count = 500
    """Aggregations T."""
    clients_per_round: Count = COHORT
    """Clients m drawn in each round, uniformly and without replacement."""
    client_lr: Rate = 0.05
    """Client learning rate eta_l of the first rounds; the method's default if left out."""
    server_lr: Rate = 0.1
    """Server learning rate eta_g, constant over the rounds; the method's default if left out."""
    lr_decay: Share = 0.999
    """Factor on the client rate from round to round."""
    server_lr_schedule: Schedule = "constant"
    """How the server rate falls to zero over the rounds: constant (not at all), linear, cosine."""
    look_ahead: LookAhead | None = None
    """Steps ahead of the model at which clients start, or auto; by default the method's."""
    model_average: ModelAverageName = "none"
    """Which average of the iterates is evaluated and saved: none, ema, or tail (recommended)."""
    local_epochs: Count = 1
    """Passes of a client over its training part per round."""
    batch_size: Count = 50
    """Samples per local step; the last, shorter batch is kept."""
    seed: Seed = 77
    """Seed of every random draw, including the split."""

    executor: ExecutorName = "auto"
    """How clients are trained: serial, processes, vectorized, ray, or auto: by the run's shape."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Worker processes, 0 for one per core. The result does not depend on it."""
    start_method: StartMethod = "auto"
    """How worker processes are started; auto forks where that is safe."""
    device: Device = Field(
        default="auto",
        description="Where clients train: cpu, cuda, or auto for cuda where there is one. The "
        "executor ray uses the CPU.",
    )
    precision: Precision = "float32"
    """Type of products in local training; bfloat16 (autocast) is not for published numbers."""
    ray_address: str | None = Field(default=None, min_length=1)
    """Cluster of the executor ray: HOST:PORT, auto, or local; RAY_ADDRESS if left out."""

    layers: Grouping = "layer"
    """What counts as a layer for layer-wise rules: layer, tensor, or whole."""
    buffers: BufferPolicy = "mean"
    """What happens to buffers (running statistics), which are not part of the geometry."""
    evaluate_every: Period = 25
    """Rounds between evaluations of all clients; 0 for the end only."""
    evaluate_first: bool = False
    """Evaluate before the first round too."""
    evaluate_train_loss: bool = True
    """Compute the training loss over all clients when evaluating."""
    evaluate_batch: Count = 128
    """Samples per forward pass in an evaluation; lower it if memory is short."""
    diagnostics_every: Period = 10
    """Rounds between rows in conflicts.csv, cohorts.csv and, by layer, cosines.csv; 0 for none."""
    checkpoint_every: Period = 50
    """Rounds between checkpoints; 0 to use only checkpoint_minutes."""
    checkpoint_minutes: Annotated[float, Field(ge=0, le=1e6)] = 5.0
    """Minutes between checkpoints; 0 to use only checkpoint_every."""
    keep_checkpoints: Annotated[int, Field(ge=1, le=1000)] = 2
    """Number of checkpoints kept, the newest ones."""
    state_memory_mb: Annotated[float, Field(gt=0)] = 1024.0
    """Client states (personal models) above this many MiB are kept on disk."""

    nonfinite: NonFinitePolicy = "raise"
    """A client that sends NaN or Inf: raise an error, drop it from the round, or stop the run."""
    min_clients: Count = 1
    """Fewer clients than this left in a round is an error."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability that a sampled client never answers (simulated)."""
    target_accuracy: Share | None = None
    """Stop once the mean test accuracy reaches this."""
    patience: Count | None = None
    """Stop after this many evaluations without a better mean."""
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    """Stop at the first round that ends later than this after the start."""
    secure: dict[str, Any] = Field(default_factory=dict)
    """Secure aggregation: enabled, sketch, refinements, most_share, dropouts, ... (privacy.md)."""
    privacy: dict[str, Any] = Field(default_factory=dict)
    """Differential privacy: mode (local, distributed, central), clip, noise, delta, epsilon."""
    clock: dict[str, Any] = Field(default_factory=dict)
    """A virtual clock: mode (synchronous, buffered), speed_spread, day, ... (virtual-clock.md)."""

    if not TYPE_CHECKING:  # type checkers and editors know the keys from the fields

        def __init__(self, /, **given: Any) -> None:
            try:
                super().__init__(**given)
            except ValidationError as error:
                raise config_error(error, type(self)) from None

        # Without this mark validation would return here and lose its context.
        __init__.__pydantic_base_init__ = True

    @model_validator(mode="wrap")
    @classmethod
    def _complete(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(given, dict):
            return validate(given)
        # None means that a key is left out, as a file would express it.
        found = {k: v for k, v in given.items() if v is not None or k not in cls.model_fields}
        filled, objects = cls.complete(found)
        settings = validate(filled)
        settings.model_fields_set.intersection_update(found)
        settings._objects = objects
        return settings

    @classmethod
    def complete(cls, given: dict[str, Any]) -> tuple[dict[str, Any], Objects]:
        """Return plain keys, including those that follow from others, and Python objects."""
        return plain(given), Objects()

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> Self:
        self.check(names=not info.context or info.context.get("names", True))
        return self

    def check(self, *, names: bool) -> None:
        """Raise ValueError if keys contradict each other; ``names``: also if a name is unknown."""
        at_most(self, "min_clients", "clients_per_round")
        checked_options(_check_protection, self)
        checked_options(check_clock, self)

    def given(self) -> dict[str, Any]:
        """The keys that were set: the others follow if the method or the data set changes."""
        return {key: self._objects.get(key, getattr(self, key)) for key in self.model_fields_set}

    def but(self, **changes: Any) -> Self:
        """Return a checked copy with some keys changed, and those that follow from them."""
        return type(self)(**(self.given() | changes))

    def identity(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share with the run it continues."""
        newer = (key for key in _AS_BEFORE if changes_result(key, getattr(self, key)))
        return {name: getattr(self, name) for name in (*_IDENTITY, *newer)}

    def client_lr_at(self, round_index: int) -> float:
        """Return eta_l of round t = 0, 1, ...: ``client_lr * lr_decay ** max(t - 1, 0)``.

        It starts to fall at t = 2, as in the released code.
        """
        return self.client_lr * self.lr_decay ** max(round_index - 1, 0)

    def server_rate_at(self, round_index: int) -> float:
        """Return the factor on the server rate in round t = 0, 1, ..., 1 at first."""
        passed = round_index / self.rounds
        if self.server_lr_schedule == "linear":
            return 1 - passed
        return (1 + math.cos(math.pi * passed)) / 2 if self.server_lr_schedule == "cosine" else 1.0

    def evaluates(self, round_number: int) -> bool:
        """Tell whether all clients are evaluated after ``round_number`` aggregations."""
        if round_number == 0:
            return self.evaluate_first
        due = self.evaluate_every and round_number % self.evaluate_every == 0
        return bool(due) or round_number == self.rounds

    def diagnoses(self, round_number: int) -> bool:
        """Tell whether the certificate of this round goes to conflicts.csv."""
        if not self.diagnostics_every:
            return False
        return round_number % self.diagnostics_every == 0 or self.evaluates(round_number)

    @property
    def worker_count(self) -> int:
        """Number of processes to use: as asked, or one per core this process may run on."""
        return self.workers or usable_cores()


def checked_options(read: Callable[[Any], Any], given: Mapping[str, Any] | BaseModel) -> None:
    """Raise ValueError if a table does not hold what ``read`` expects."""
    try:
        read(given)
    except FedcraftError as error:
        raise ValueError(str(error)) from None


def _check_protection(settings: Settings) -> None:
    """Raise an error if the keys of secure or privacy are wrong, or do not go together."""
    secure, privacy = Secure.from_table(settings.secure), Privacy.from_table(settings.privacy)
    if settings.secure and "enabled" not in settings.secure:
        names = ", ".join(f"secure.{key}" for key in settings.secure)
        raise InputError(
            f"secure: expected secure.enabled beside {names}, found none, and then updates are "
            f"sent in the clear. Add secure.enabled=true, or remove {names}."
        )
    if privacy is not None:
        privacy.check_secure(secure)


def changes_result(key: str, value: Any) -> bool:
    """Tell whether a key counts in a run's name: newer keys do not while they change nothing."""
    return value not in _AS_BEFORE.get(key, ())


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def at_most(settings: BaseModel, small: str, large: str) -> None:
    """Raise ValueError if the key ``small`` exceeds the key ``large``."""
    if getattr(settings, small) > getattr(settings, large):
        raise ValueError(
            f"{small}: expected at most {large} = {getattr(settings, large)}, found "
            f"{getattr(settings, small)}. Lower {small} or raise {large}."
        )
