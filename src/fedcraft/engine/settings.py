"""Everything the engine itself can be told: how long, how many, how fast, what to do when."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fedcraft.errors import ConfigError
from fedcraft.updates import BufferPolicy, Grouping

__all__ = ["Device", "Executor", "NonFinitePolicy", "Settings", "StartMethod"]

Executor = Literal["auto", "serial", "processes", "vectorized", "ray"]
NonFinitePolicy = Literal["raise", "drop", "stop"]
StartMethod = Literal["auto", "fork", "forkserver", "spawn"]
Device = Literal["auto", "cpu", "cuda"]

_IDENTITY = (
    "clients_per_round", "client_lr", "server_lr", "lr_decay", "local_epochs", "batch_size",
    "seed", "layers", "buffers", "dropout", "nonfinite",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run of the paper's Algorithm 1 with T = ``rounds`` aggregations.

    The released loop runs T + 1 of them (t = 0..T); ask for ``rounds=501`` to repeat that.
    """

    rounds: int = 500
    clients_per_round: int = 10
    client_lr: float = 0.05
    server_lr: float = 0.1
    lr_decay: float = 0.999
    """Round t (from 0) trains at ``client_lr * lr_decay ** max(t - 1, 0)``; eta_g is constant."""
    local_epochs: int = 1
    batch_size: int = 50
    seed: int = 77
    layers: Grouping = "layer"
    buffers: BufferPolicy = "mean"

    evaluate_every: int = 25
    """Rounds between evaluations of all clients; 0 for the end alone. The end always counts."""
    evaluate_first: bool = False
    evaluate_train_loss: bool = True
    evaluate_batch: int = 128
    """Samples of one forward pass in an evaluation: more do not fit into the caches."""
    diagnostics_every: int = 10
    """Rounds between rows of conflicts.csv (evaluation rounds always have theirs); 0 for none."""

    executor: Executor = "auto"
    workers: int = 0
    """Worker processes; 0 for one per usable core. The result does not depend on it."""
    start_method: StartMethod = "auto"
    ray_address: str | None = None
    """Cluster of the executor ray: HOST:PORT, auto or local; RAY_ADDRESS, then local, if None."""
    device: Device = "auto"
    """Where the vectorized executor trains; the others use the CPU."""

    checkpoint_every: int = 50
    """Rounds between checkpoints; 0 to go by ``checkpoint_minutes`` alone."""
    checkpoint_minutes: float | None = 5.0
    keep_checkpoints: int = 2
    state_memory_mb: float = 1024.0
    """Client states (personal models) above this many MiB live on disk."""

    nonfinite: NonFinitePolicy = "raise"
    """A client that sends NaN or Inf: fail, drop it from the round, or end the run in order."""
    min_clients: int = 1
    """Fewer clients than this left in a round is an error."""
    dropout: float = 0.0
    """Chance that a sampled client never answers (simulated)."""

    target_accuracy: float | None = None
    """Stop once the mean test accuracy reaches this."""
    patience: int | None = None
    """Stop after this many evaluations without a better mean."""
    max_minutes: float | None = None
    """Stop at the first round that ends later than this after the start of the process."""

    def __post_init__(self) -> None:
        for name in ("rounds", "clients_per_round", "local_epochs", "batch_size"):
            _at_least(name, getattr(self, name), 1)
        for name in ("keep_checkpoints", "min_clients", "evaluate_batch"):
            _at_least(name, getattr(self, name), 1)
        for name in ("evaluate_every", "diagnostics_every", "workers", "checkpoint_every", "seed"):
            _at_least(name, getattr(self, name), 0)
        for name in ("client_lr", "server_lr", "lr_decay", "state_memory_mb"):
            _positive(name, getattr(self, name))
        for name in ("checkpoint_minutes", "max_minutes"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        _choice("executor", self.executor, get_args(Executor))
        _choice("start_method", self.start_method, get_args(StartMethod))
        _choice("device", self.device, get_args(Device))
        _choice("nonfinite", self.nonfinite, get_args(NonFinitePolicy))
        _choice("layers", self.layers, get_args(Grouping))
        _choice("buffers", self.buffers, get_args(BufferPolicy))
        self._check_shares()

    def _check_shares(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: expected a share in [0, 1), found {self.dropout}")
        if self.min_clients > self.clients_per_round:
            raise ConfigError(
                f"min_clients: expected at most clients_per_round = {self.clients_per_round}, "
                f"found {self.min_clients}"
            )
        if self.target_accuracy is not None and not 0 < self.target_accuracy <= 1:
            raise ConfigError(
                f"target_accuracy: expected a share in (0, 1], found {self.target_accuracy}"
            )
        if self.patience is not None:
            _at_least("patience", self.patience, 1)

    def identity(self) -> dict[str, Any]:
        """Return the settings a resumed run must share with the one it continues."""
        return {name: getattr(self, name) for name in _IDENTITY}

    def client_lr_at(self, round_index: int) -> float:
        """Return eta_l of round t = 0, 1, ...: it starts to fall at t = 2, as released."""
        return self.client_lr * self.lr_decay ** max(round_index - 1, 0)

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
        return self.workers or _usable_cores()


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}: expected a whole number of at least {least}, found {value!r}")


def _positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name}: expected a number above 0, found {value!r}")
    if not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{name}: expected a finite number above 0, found {value!r}")


def _choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}: expected one of {', '.join(choices)}, found {value!r}")
