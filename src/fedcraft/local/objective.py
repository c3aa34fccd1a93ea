"""The contract of local training.

A local objective is a pure function: (model, task) -> (row, result). The task contains everything
that may differ between two calls, also the address of its random streams; the same task gives the
same bits in any process, and global generators stay unchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcraft.data import Tensors
from fedcraft.errors import InputError, StateError, require
from fedcraft.models import FlatModel, seeded
from fedcraft.models.flat import trainable
from fedcraft.seeds import generator, torch_generator

T = TypeVar("T")
ClientState = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) -> mean over the batch

_PART = 1000


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with a prefix before their names, so that others can be kept beside them."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def unprefixed(prefix: str, named: Mapping[str, T]) -> dict[str, T]:
    """Return what :func:`prefixed` has named, by its own names."""
    found = {name: value for name, value in named.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): value for name, value in found.items()}


class SeedAddress(NamedTuple):
    """The address of a client's random streams: tasks with the same one draw the same numbers."""

    run_seed: int
    round: int
    client: int

    def order(self) -> np.random.Generator:
        """Return the stream of the client's batches: shuffles and augmentation."""
        return generator(self.run_seed, "batches", self.round, self.client)

    def dropout_seed(self) -> int:
        """Return the seed for torch's global generator, the only one dropout draws from."""
        return torch_generator(self.run_seed, "dropout", self.round, self.client).initial_seed()


@dataclass(frozen=True, eq=False)
class ClientData:
    """The training data of one client: the shared tensors, and the numbers of its rows.

    A subclass may override :meth:`epoch` to prescribe an order, as the golden tests do.
    """

    tensors: Tensors
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, inputs: Tensor, labels: Tensor) -> ClientData:
        """Wrap tensors that belong to one client and are ready for its model."""
        return cls(Tensors(inputs, labels), np.arange(len(labels)))

    def __len__(self) -> int:
        return len(self.rows)

    def epoch(self, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return all samples, shuffled and augmented by ``draw``: gathered once, sliced later."""
        return self.tensors.epoch(self.rows, draw)

    def whole(self) -> tuple[Tensor, Tensor]:
        """Return all samples in the order of the data set, unaugmented."""
        return self.tensors.gather(self.rows)

    def parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield :meth:`whole` in pieces that bound the memory of a pass through the model."""
        inputs, labels = self.whole()
        for first in range(0, len(labels), _PART):
            yield inputs[first : first + _PART], labels[first : first + _PART]


@dataclass(frozen=True, eq=False)
class LocalTask:
    """What one client is asked to do in one round.

    ``theta`` is the broadcast model theta_t; ``initial`` the run's theta_0, where personal parts
    start in a client's first round (``theta`` if left out); ``lr`` the rate of this round, already
    decayed; ``state`` what the client kept from its last participation; ``buffers`` the broadcast
    buffers (those in the module if left out).
    ``report_loss`` asks for the mean training loss at ``theta``: one more forward pass. ``sent``
    is what the aggregation rule sends beside the model (SCAFFOLD's control variate). ``precision``
    is the type of the products of local training; parameters and updates keep theirs.
    """

    theta: Tensor
    data: ClientData
    lr: float
    address: SeedAddress
    epochs: int = 1
    batch_size: int = 50
    state: ClientState | None = None
    initial: Tensor | None = None
    buffers: dict[str, Tensor] | None = None
    report_loss: bool = False
    sent: Mapping[str, Tensor] = field(default_factory=dict)
    precision: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        require(0 <= self.lr < float("inf"), "lr", "a finite rate >= 0", self.lr)
        require(self.epochs >= 0, "epochs", "at least 0", self.epochs)
        require(self.batch_size >= 1, "batch_size", "at least 1", self.batch_size)
        if not len(self.data):
            raise InputError(f"data: client {self.address.client} has no training sample")

    @property
    def batches_per_epoch(self) -> int:
        """ceil(n_i / B): the last short batch is kept."""
        return -(-len(self.data) // self.batch_size)

    @overload
    def kept(self, name: str) -> Tensor | None: ...
    @overload
    def kept(self, name: str, first: Tensor) -> Tensor: ...
    def kept(self, name: str, first: Tensor | None = None) -> Tensor | None:
        """Return one tensor of the client's state, ``first`` in its first round."""
        if self.state is None:
            return first
        if name not in self.state:
            raise StateError(
                f"state of client {self.address.client}: expected {name!r}, found "
                f"{sorted(self.state)}; it was kept by another local objective"
            )
        return self.state[name]

    def start(self) -> Tensor:
        """Return theta_0, where personal models begin."""
        return self.theta if self.initial is None else self.initial

    def batches(self, epochs: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of ``epochs`` shuffled epochs (those of the task if left out).

        Every call restarts the client's stream, so two passes see the same batches.
        """
        draw = self.address.order()
        for _ in range(self.epochs if epochs is None else epochs):
            inputs, labels = self.data.epoch(draw)
            for first in range(0, len(labels), self.batch_size):
                batch = slice(first, first + self.batch_size)
                yield inputs[batch], labels[batch]


@dataclass(frozen=True)
class LocalResult:
    """What a client reports beside its row g_i.

    ``steps`` is FedNova's A_i = ||a_i||_1, the weight of the local gradients in the update: the
    number of batches for plain SGD. ``loss`` is the loss at theta_t if the task asks for it,
    ``train_loss`` the mean over the local batches (NaN without any). ``state`` replaces the
    client's kept state; None keeps nothing. ``buffers`` are the module's after training, if it has
    any.
    """

    samples: int
    steps: float
    train_loss: float
    loss: float | None = None
    state: ClientState | None = None
    buffers: dict[str, Tensor] | None = None


class LocalObjective(ABC):
    """What a client does in a round.

    A new objective implements ``_run``: train ``model`` from ``task.theta`` and leave the local
    model in ``model.vector``. To evaluate clients with personal parameters, set ``personal``
    and implement ``personal_vector``.
    """

    personal: bool = False
    receives: frozenset[str] = frozenset()
    """What the rule must send beside the model: names of ``task.sent``."""

    def __init__(self, *, loss: Loss = cross_entropy) -> None:
        self.loss = loss

    def check(self, module: nn.Module) -> None:
        """Raise ``InputError`` if this objective cannot train ``module``: called before round 1."""
        trainable(module)

    @abstractmethod
    def _run(self, model: FlatModel, task: LocalTask) -> LocalResult:
        """Train and report; ``model`` already holds theta_t and is in training mode."""

    def train(self, model: FlatModel, task: LocalTask, out: Tensor) -> LocalResult:
        """Train one client and write its row g_i = theta_t - theta_i into ``out``, in place.

        ``model`` is scratch: its vector and mode are ignored before and undefined after the call;
        its buffers are restored. ``out`` must not overlap with ``task.theta``.
        """
        with _own_buffers(model, task):
            before = self.loss_at(model, task.theta, task.data) if task.report_loss else None
            model.load(task.theta)
            _set_mode(model, training=True)
            precision = autocast(task.theta.device, task.precision)
            with seeded(task.address.dropout_seed()), precision:
                result = self._run(model, task)
            torch.sub(task.theta, model.vector, out=out)
            return replace(result, loss=before, buffers=model.buffers() or None)

    def loss_at(self, model: FlatModel, theta: Tensor, data: ClientData) -> float:
        """Return the client's mean training loss at ``theta``: no dropout, no augmentation."""
        model.load(theta)
        _set_mode(model, training=False)
        with torch.no_grad():
            parts = [(len(y), float(self.loss(model(x), y))) for x, y in data.parts()]
        return sum(size * mean for size, mean in parts) / len(data)

    @torch.no_grad()
    def score(self, model: FlatModel, data: ClientData) -> tuple[float, int]:
        """Return the sum of losses and the number of correct answers of the loaded model."""
        total, correct = 0.0, 0
        for inputs, labels in data.parts():
            outputs = model(inputs)
            total += float(self.loss(outputs, labels)) * len(labels)
            correct += int((outputs.argmax(1) == labels).sum())
        return total, correct

    def personal_vector(self, model: FlatModel, task: LocalTask) -> Tensor:
        """Return the parameters this client is evaluated with: theta, unless personalised.

        ``task`` is the task that the client would train on now. ``model`` is scratch. The result
        may share memory with the task: read only.
        """
        return task.theta


def autocast(device: torch.device, precision: torch.dtype) -> AbstractContextManager[Any]:
    """Multiply in ``precision`` inside the block; float32 changes nothing."""
    if precision == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, precision)


@contextmanager
def _own_buffers(model: FlatModel, task: LocalTask) -> Iterator[None]:
    """Load the task's buffers inside the block, so that clients do not affect each other."""
    before = model.buffers()
    if task.buffers is not None:
        model.load_buffers(task.buffers)
    try:
        yield
    finally:
        model.load_buffers(before)


def _set_mode(model: FlatModel, *, training: bool) -> None:
    # Visiting every module of a deep network costs more than asking its root.
    if model.module.training != training:
        model.module.train(training)
