"""The keys of a configuration as typed keyword arguments, for editors and type checkers.

A test compares them with the schema, which checks the values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict

from torch import nn

from fedcraft.aggregators import Aggregator
from fedcraft.config.schema import PartitionName, Tracking
from fedcraft.config.settings import (
    Device,
    ExecutorName,
    ModelAverageName,
    NonFinitePolicy,
    Precision,
    Schedule,
    StartMethod,
)
from fedcraft.methods import Method, Override
from fedcraft.updates import BufferPolicy, Grouping

DatasetLike = Any
"""A name, a path, a Dataset, arrays (inputs, labels[, owners]), a torch Dataset, a data frame."""
ModelLike = str | nn.Module | Callable[..., nn.Module]
MethodLike = str | Method | Aggregator | type[Aggregator]


class ObjectKeys(TypedDict, total=False):
    """Keys that take a Python object in place of a name."""

    dataset: DatasetLike
    model: ModelLike
    method: MethodLike
    local: Override
    aggregator: Override
    server: Override
    guard: Override


class TrainingKeys(TypedDict, total=False):
    """Settings that the simulator and a Flower federation share."""

    lr_decay: float
    server_lr_schedule: Schedule
    look_ahead: float | Literal["auto"] | None
    model_average: ModelAverageName
    local_epochs: int
    batch_size: int
    seed: int
    layers: Grouping
    buffers: BufferPolicy
    evaluate_every: int
    evaluate_train_loss: bool
    diagnostics_every: int
    checkpoint_every: int
    keep_checkpoints: int


class Overrides(ObjectKeys, TrainingKeys, total=False):
    """Every key of a configuration."""

    label: str | None
    clients: int | None
    partition: PartitionName | None
    alpha: float | None
    min_size: int | None
    shards_per_client: int | None
    max_samples: int | None
    samples: int | None
    split_seed: int | None
    train_fraction: float
    validation_fraction: float
    data_root: str | os.PathLike[str] | None
    offline: bool
    tracking: Tracking
    rounds: int
    clients_per_round: int | None
    client_lr: float | None
    server_lr: float | None
    executor: ExecutorName
    workers: int
    start_method: StartMethod
    device: Device
    precision: Precision
    ray_address: str | None
    evaluate_first: bool
    evaluate_batch: int
    checkpoint_minutes: float
    state_memory_mb: float
    nonfinite: NonFinitePolicy
    min_clients: int
    dropout: float
    target_accuracy: float | None
    patience: int | None
    max_minutes: float | None
    attack: str | Mapping[str, Any]
    model_options: Mapping[str, Any]
    data_options: Mapping[str, Any]
    secure: Mapping[str, Any]
    privacy: Mapping[str, Any]
    clock: Mapping[str, Any]
