"""What the clients of a run have in common, and the memory in which they do their work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedcraft.data import Federation, Tensors
from fedcraft.engine.shared import PrivateSlots, SharedTensor, Slots
from fedcraft.local import ClientData, LocalObjective

__all__ = ["SPLITS", "Command", "DataSource", "Desk", "Job", "Shard", "shards"]

SPLITS = ("test", "train", "validation")
REPORT = ("samples", "steps", "train_loss", "loss", "total", "busy")
_BATCHES_PER_SHARD = 8
_STATE_FACTOR = 4  # address space for a client's state, in models

DataSource = Callable[[Tensors, NDArray[np.int64], int, int], ClientData]


def own_order(tensors: Tensors, rows: NDArray[np.int64], client: int, round: int) -> ClientData:
    """Return a client's data, shuffled by its own stream: the ordinary source."""
    return ClientData(tensors, rows)


class Command(NamedTuple):
    """One phase of work for everybody: what to do in which round, at which rate."""

    kind: str
    round: int
    lr: float = 0.0
    report_loss: bool = False
    splits: tuple[str, ...] = ("test",)
    group: int = 0
    """Clients trained side by side: unit u is then the u-th run of so many seats."""

    @property
    def voidable(self) -> bool:
        """Tell whether the phase can be dropped half-way: a round that is aggregated cannot."""
        return self.kind in ("train", "group", "loss")


class Shard(NamedTuple):
    """A run of a split's concatenated samples: the unit of evaluation."""

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
    data: DataSource = own_order
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def client_data(self, client: int, round: int) -> ClientData:
        """Return what a client trains on in a round."""
        return self.data(self.tensors, self.federation.rows(client), client, round)


def shards(job: Job, splits: tuple[str, ...]) -> list[Shard]:
    """Cut the splits into shards: fixed by the data alone, so by no number of workers."""
    size = job.evaluate_batch * _BATCHES_PER_SHARD
    cut = []
    for split in splits:
        samples = getattr(job.federation, split).indices.size
        starts = range(0, samples, size)
        cut += [Shard(split, start, min(start + size, samples)) for start in starts]
    return cut


@dataclass(eq=False)
class Desk:
    """The shared memory of a run: broadcast model, update matrix, reports, states, scores.

    Row s of ``updates`` belongs to slot s, whose client is ``clients[s]``. Memory grows with the
    clients of a round and with the samples, not with the number of clients.
    """

    slots: int
    dimension: int
    dtype: torch.dtype
    samples: dict[str, int]
    units: int
    buffer_bytes: int = 0
    _tensors: dict[str, SharedTensor] = field(init=False)

    def __post_init__(self) -> None:
        d, m, kind = self.dimension, self.slots, self.dtype
        self._tensors = {
            "theta": SharedTensor((d,), kind),
            "initial": SharedTensor((d,), kind),
            "updates": SharedTensor((m, d), kind),
            "clients": SharedTensor((m,), torch.int64),
            "report": SharedTensor((m, len(REPORT)), torch.float64),
            "scores": SharedTensor((m, len(SPLITS), 2), torch.float64),
            "seats": SharedTensor((m + 1,), torch.int64),
            "order": SharedTensor((self.units,), torch.int64),
            "done": SharedTensor((self.units,), torch.uint8),
            "counter": SharedTensor((2,), torch.int64),
        }
        for split, count in self.samples.items():
            self._tensors[f"{split}_loss"] = SharedTensor((count,), torch.float32)
            self._tensors[f"{split}_correct"] = SharedTensor((count,), torch.uint8)
        capacity = _STATE_FACTOR * d * kind.itemsize
        self.before: Slots | PrivateSlots = Slots(m, capacity)
        self.after: Slots | PrivateSlots = Slots(m, capacity)
        self.buffers = Slots(m + 1, self.buffer_bytes)
        self._open()

    def _open(self) -> None:
        open_ = {name: shared.tensor for name, shared in self._tensors.items()}
        self.theta, self.initial = open_["theta"], open_["initial"]
        self.updates = open_["updates"]
        self.clients, self.report = open_["clients"].numpy(), open_["report"].numpy()
        self.scores, self.order = open_["scores"].numpy(), open_["order"].numpy()
        self.seats = open_["seats"].numpy()
        self.done, self.counter = open_["done"].numpy(), open_["counter"].numpy()
        self.losses = {split: open_[f"{split}_loss"] for split in self.samples}
        self.correct = {split: open_[f"{split}_correct"] for split in self.samples}

    def __getstate__(self) -> dict[str, object]:
        kept = ("slots", "dimension", "dtype", "samples", "units", "_tensors", "before", "after")
        return {name: self.__dict__[name] for name in (*kept, "buffers", "buffer_bytes")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._open()

    def keep_states_private(self) -> None:
        """Exchange states within this process alone, where nothing bounds their size."""
        self.before, self.after = PrivateSlots(), PrivateSlots()

    @property
    def lock(self) -> int:
        """A file descriptor to lock on: the kernel lets go of it when its holder dies."""
        return self._tensors["counter"].bytes.descriptor

    @property
    def broadcast_buffers(self) -> int:
        """The buffer slot that carries the server's."""
        return self.slots
