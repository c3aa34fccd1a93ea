"""The job that all clients of a run share, the commands of a round, and the shared workspace."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcraft.data import Federation, Tensors
from fedcraft.engine.executors.shared_memory import PrivateSlots, Regions, SharedBytes, Slots
from fedcraft.local import ClientData, ClientState, LocalObjective
from fedcraft.local.fast_sgd.vectorized import GroupTrainer, make_group_trainer
from fedcraft.local.objective import prefixed, unprefixed

SPLITS = ("test", "train", "validation")
REPORT = ("samples", "steps", "train_loss", "loss", "total", "busy")
_BATCHES_PER_SHARD = 8
_SENT = "sent."
_STATE_FACTOR = 4  # address space for a client's state, in models

DataSource = Callable[[Tensors, NDArray[np.int64], int, int], ClientData]


def default_data(tensors: Tensors, rows: NDArray[np.int64], client: int, round: int) -> ClientData:
    """Return a client's data, shuffled by the client's random stream."""
    return ClientData(tensors, rows)


class Command(NamedTuple):
    """One phase of work for all units: what to do, in which round, at which rate.

    ``kind`` is "train", "group" (clients trained side by side), "loss", "personal" (evaluation
    client by client) or "evaluate" (shards of samples). A unit is the slot of a client; for
    "group" the number of a block of ``group`` entries of ``group_slots``; for "evaluate" the number
    of a shard.
    """

    kind: str
    round: int
    lr: float = 0.0
    report_loss: bool = False
    splits: tuple[str, ...] = ("test",)
    group: int = 0

    @property
    def discardable(self) -> bool:
        """Tell whether the phase may be abandoned: not after the aggregation of a round."""
        return self.kind in ("train", "group", "loss")


class Shard(NamedTuple):
    """A range of a split's concatenated samples: the unit of evaluation."""

    split: str
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Job:
    """Everything about a run that does not change from round to round."""

    module: nn.Module
    objective: LocalObjective
    federation: Federation
    tensors: Tensors
    epochs: int
    batch_size: int
    seed: int
    evaluate_batch: int
    data: DataSource = default_data
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: torch.dtype = torch.float32

    def client_data(self, client: int, round: int) -> ClientData:
        """Return the samples on which a client trains in a round."""
        return self.data(self.tensors, self.federation.rows(client), client, round)

    def group_trainer(self) -> GroupTrainer | None:
        """Return what trains clients side by side, None if they must be trained one by one."""
        return make_group_trainer(self.objective, self.module, self.device, self.precision)

    def without_samples(self) -> Job:
        """Return a copy small enough to be sent: workers need only the indices of a federation."""
        federation: Any = copy.copy(self.federation)
        object.__setattr__(federation, "dataset", None)
        empty = replace(self.tensors, inputs=torch.empty(0), labels=torch.empty(0))
        return replace(self, federation=federation, tensors=empty)

    def shards(self, splits: tuple[str, ...]) -> list[Shard]:
        """Divide the splits into shards, which depend on the data and not on the workers."""
        size = self.evaluate_batch * _BATCHES_PER_SHARD
        return [
            Shard(split, start, min(start + size, samples))
            for split in splits
            for samples in [getattr(self.federation, split).indices.size]
            for start in range(0, samples, size)
        ]


def with_sent(state: ClientState | None, sent: Mapping[str, Tensor]) -> ClientState | None:
    """Return the content of a client's slot: its state, and what the server sends beside theta."""
    if not sent:
        return state
    return {**(state or {}), **prefixed(_SENT, sent)}


def without_sent(content: ClientState | None) -> tuple[ClientState | None, ClientState]:
    """Return the state in a client's slot, None if it has none, and what the server has sent."""
    if content is None:
        return None, {}
    sent = unprefixed(_SENT, content)
    state = {name: value for name, value in content.items() if not name.startswith(_SENT)}
    return (state or None) if sent else state, sent


class Workspace:
    """The shared memory of a run: broadcast model, update matrix, reports, states, scores.

    Row s of ``updates`` belongs to slot s, whose client is ``clients[s]``. Memory grows with the
    clients of a round and with the samples, not with the number of clients. ``regions`` is the
    memory of the same workspace in another process.
    """

    def __init__(
        self,
        slots: int,
        dimension: int,
        dtype: torch.dtype,
        samples: dict[str, int],
        units: int,
        buffer_bytes: int = 0,
        regions: Iterable[SharedBytes] = (),
    ) -> None:
        self.slots, self.dimension, self.dtype = slots, dimension, dtype
        self.samples, self.units, self.buffer_bytes = samples, units, buffer_bytes
        self._regions = memory = Regions(regions)
        self.theta = memory.tensor((dimension,), dtype)
        self.initial = memory.tensor((dimension,), dtype)
        self.updates = memory.tensor((slots, dimension), dtype)
        self.clients = memory.tensor((slots,), torch.int64).numpy()
        self.report = memory.tensor((slots, len(REPORT)), torch.float64).numpy()
        self.scores = memory.tensor((slots, len(SPLITS), 2), torch.float64).numpy()
        self.losses = {s: memory.tensor((n,), torch.float32) for s, n in samples.items()}
        self.correct = {s: memory.tensor((n,), torch.uint8) for s, n in samples.items()}
        self.group_slots = memory.tensor((slots + 1,), torch.int64).numpy()
        """The slots in the order of their groups; the last entry is their number."""
        self.queue = memory.tensor((units,), torch.int64).numpy()
        self.done = memory.tensor((units,), torch.uint8).numpy()
        counter = memory.take(torch.int64.itemsize)
        self.counter = counter.tensor((1,), torch.int64).numpy()
        self.lock = counter.descriptor
        """A file descriptor for locks: the kernel releases them when their holder dies."""
        capacity = _STATE_FACTOR * dimension * dtype.itemsize
        self.before: Slots | PrivateSlots = Slots(slots, capacity, memory)
        self.after: Slots | PrivateSlots = Slots(slots, capacity, memory)
        self.buffers = Slots(slots + 1, buffer_bytes, memory)
        self.broadcast_buffers = slots
        """The slot of the server's buffers."""

    def __reduce__(self) -> tuple[Any, ...]:
        size = (self.slots, self.dimension, self.dtype, self.samples, self.units)
        return Workspace, (*size, self.buffer_bytes, self._regions.regions)

    def keep_states_private(self) -> None:
        """Exchange states within this process only, without a limit on their size."""
        self.before, self.after = PrivateSlots(), PrivateSlots()
