"""What travels between the server and a worker on another node, and how it is packed.

Arrays travel beside the pickle, not in it, so Ray keeps each of them once per node and every worker
there reads the same memory. numpy does not know all of torch's types, hence the bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcraft.engine.job import REPORT, Command, Desk, Job, Shard

__all__ = [
    "Answer",
    "Broadcast",
    "Errand",
    "Packed",
    "Shipment",
    "answer",
    "broadcast",
    "deliver",
    "errand",
    "install",
    "pack",
    "receive",
    "ship",
    "unpack",
    "unship",
]

_LOSS = REPORT.index("loss")


class Packed(NamedTuple):
    """A tensor as its bytes."""

    dtype: str
    shape: tuple[int, ...]
    content: NDArray[np.uint8]


PackedDict = dict[str, Packed]


class Broadcast(NamedTuple):
    """The server's model in one phase: the same for everybody."""

    theta: Packed
    buffers: PackedDict | None


class Errand(NamedTuple):
    """One unit of a phase: a client with what it keeps, or the number of an evaluation shard."""

    unit: int
    client: int | None
    state: PackedDict | None


class Answer(NamedTuple):
    """What one unit wrote on its worker's desk."""

    numbers: NDArray[np.float64] | None = None
    update: Packed | None = None
    state: PackedDict | None = None
    buffers: PackedDict | None = None
    shard: tuple[Packed, Packed] | None = None


class Shipment(NamedTuple):
    """A job whose samples are plain arrays, and the measures of a worker's desk."""

    job: Job
    inputs: NDArray[Any]
    labels: NDArray[Any]
    desk: dict[str, Any]


def pack(tensor: Tensor) -> Packed:
    """Return the bytes of a tensor; they may share its memory."""
    flat = tensor.detach().contiguous().view(-1)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Packed(dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy())


def unpack(packed: Packed) -> Tensor:
    """Return the tensor, in the memory it travelled in: read only."""
    return _wrap(packed.content).view(getattr(torch, packed.dtype)).view(packed.shape)


def ship(job: Job, desk: Desk, slots: int) -> Shipment:
    """Take the samples out of a job; where tensors and data set share them, they go once.

    The workers' desks have ``slots`` slots and the other measures of the server's.
    """
    given = job.federation.dataset
    dataset = replace(given, inputs=np.asarray(given.inputs), labels=np.asarray(given.labels))
    hollow = replace(job.tensors, inputs=torch.empty(0), labels=torch.empty(0))
    bare = replace(job, federation=replace(job.federation, dataset=dataset), tensors=hollow)
    inputs = _array(job.tensors.inputs, dataset.inputs)
    labels = _array(job.tensors.labels, dataset.labels)
    names = ("dimension", "dtype", "samples", "buffer_bytes")
    measures = {name: getattr(desk, name) for name in names}
    return Shipment(bare, inputs, labels, {**measures, "slots": slots, "units": 1})


def unship(shipment: Shipment) -> tuple[Job, Desk]:
    """Return the job, its samples where Ray put them on this node, and a desk for its units."""
    job, inputs, labels, measures = shipment
    tensors = replace(job.tensors, inputs=_wrap(inputs), labels=_wrap(labels))
    return replace(job, tensors=tensors), Desk(**measures)


def broadcast(desk: Desk) -> Broadcast:
    """Read the server's model from its desk."""
    return Broadcast(pack(desk.theta), _pack_all(desk.buffers.get(desk.broadcast_buffers)))


def errand(desk: Desk, command: Command, unit: int) -> Errand:
    """Read one unit's part from the server's desk."""
    if command.kind == "evaluate":
        return Errand(unit, None, None)
    return Errand(unit, int(desk.clients[unit]), _pack_all(desk.before.get(unit)))


def receive(desk: Desk, slot: int, errand: Errand) -> int:
    """Lay an errand out on a worker's desk and return the unit its bench should do."""
    if errand.client is None:
        return errand.unit
    desk.clients[slot] = errand.client
    desk.before.put(slot, _unpack_all(errand.state))
    return slot


def install(desk: Desk, model: Broadcast, initial: Packed) -> None:
    """Put the server's model on a worker's desk: no copy, Ray's memory stays where it is."""
    desk.theta, desk.initial = unpack(model.theta), unpack(initial)
    desk.buffers.put(desk.broadcast_buffers, _unpack_all(model.buffers))


def answer(desk: Desk, command: Command, slot: int, shard: Shard | None) -> Answer:
    """Return what a unit wrote on a worker's desk, as views: valid until the slot is used again."""
    if shard is not None:
        span = slice(shard.start, shard.stop)
        losses, correct = desk.losses[shard.split][span], desk.correct[shard.split][span]
        return Answer(shard=(pack(losses), pack(correct)))
    if command.kind == "personal":
        return Answer(desk.scores[slot])
    if command.kind == "loss":
        return Answer(desk.report[slot])
    update, state, buffers = desk.updates[slot], desk.after.get(slot), desk.buffers.get(slot)
    return Answer(desk.report[slot], pack(update), _pack_all(state), _pack_all(buffers))


def deliver(desk: Desk, command: Command, unit: int, shard: Shard | None, found: Answer) -> None:
    """Write an answer to the place on the server's desk where a local worker would have."""
    if shard is not None and found.shard is not None:
        span = slice(shard.start, shard.stop)
        desk.losses[shard.split][span] = unpack(found.shard[0])
        desk.correct[shard.split][span] = unpack(found.shard[1])
    elif command.kind == "personal":
        desk.scores[unit] = found.numbers
    elif command.kind == "loss" and found.numbers is not None:
        desk.report[unit, _LOSS] = found.numbers[_LOSS]
    elif found.update is not None:
        desk.report[unit] = found.numbers
        desk.updates[unit].copy_(unpack(found.update))
        desk.after.put(unit, _unpack_all(found.state))
        desk.buffers.put(unit, _unpack_all(found.buffers))


def _pack_all(tensors: Mapping[str, Tensor] | None) -> PackedDict | None:
    return None if tensors is None else {name: pack(value) for name, value in tensors.items()}


def _unpack_all(packed: PackedDict | None) -> dict[str, Tensor] | None:
    return None if packed is None else {name: unpack(value) for name, value in packed.items()}


def _array(tensor: Tensor, array: NDArray[Any]) -> NDArray[Any]:
    """Return the tensor as an array: ``array`` itself if that is the same memory."""
    same = tensor.data_ptr() == array.ctypes.data and tensor.numel() == array.size
    return array if same else tensor.numpy()


def _wrap(array: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        # Ray's memory is read-only, and torch says that nothing must write to it. Nothing does.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)
