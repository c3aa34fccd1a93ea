"""The messages between the server and a Ray worker, and how tensors are packed into them.

Arrays are sent outside the pickle, so Ray keeps each of them once per node and all workers there
read the same memory. Tensors are packed as bytes, because numpy lacks some of torch's types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcraft.engine.executors.job import REPORT, Command, Job, Shard, Workspace
from fedcraft.updates.reading import array_view

_LOSS = REPORT.index("loss")


class PackedTensor(NamedTuple):
    """A tensor as its bytes."""

    dtype: str
    shape: tuple[int, ...]
    content: NDArray[np.uint8]


PackedTensors = dict[str, PackedTensor]


class PackedJob(NamedTuple):
    """A job whose samples are plain arrays, and the size of a worker's workspace."""

    job: Job
    inputs: NDArray[Any]
    labels: NDArray[Any]
    workspace: dict[str, Any]


class Broadcast(NamedTuple):
    """The server's model in one phase: the same for all workers."""

    theta: PackedTensor
    buffers: PackedTensors | None


class UnitInput(NamedTuple):
    """One unit of a phase: a client with its state, or the number of an evaluation shard."""

    unit: int
    client: int | None = None
    state: PackedTensors | None = None


class UnitOutput(NamedTuple):
    """What one unit wrote into its worker's workspace."""

    arrays: PackedTensors
    state: PackedTensors | None = None
    buffers: PackedTensors | None = None


def pack(tensor: Tensor) -> PackedTensor:
    """Return the bytes of a tensor; they may share its memory."""
    flat = tensor.detach().contiguous().view(-1)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return PackedTensor(dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy())


def unpack(packed: PackedTensor) -> Tensor:
    """Return the tensor, in the memory in which it arrived: read only."""
    return array_view(packed.content).view(getattr(torch, packed.dtype)).view(packed.shape)


def pack_job(job: Job, workspace: Workspace, slots: int) -> PackedJob:
    """Pack a job for workers whose workspaces have ``slots`` slots."""
    names = ("dimension", "dtype", "samples", "buffer_bytes")
    size = {name: getattr(workspace, name) for name in names}
    samples = (job.tensors.inputs.numpy(), job.tensors.labels.numpy())
    return PackedJob(job.without_samples(), *samples, {**size, "slots": slots, "units": 1})


def unpack_job(packed: PackedJob) -> tuple[Job, Workspace]:
    """Return the job, with its samples in Ray's memory, and a workspace for its units."""
    inputs, labels = array_view(packed.inputs), array_view(packed.labels)
    tensors = replace(packed.job.tensors, inputs=inputs, labels=labels)
    return replace(packed.job, tensors=tensors), Workspace(**packed.workspace)


def pack_broadcast(workspace: Workspace) -> Broadcast:
    """Read the server's model from its workspace."""
    buffers = workspace.buffers.get(workspace.broadcast_buffers)
    return Broadcast(pack(workspace.theta), _pack_all(buffers))


def unpack_broadcast(workspace: Workspace, model: Broadcast, initial: PackedTensor) -> None:
    """Put the server's model into a worker's workspace; Ray's memory is not copied."""
    workspace.theta, workspace.initial = unpack(model.theta), unpack(initial)
    workspace.buffers.put(workspace.broadcast_buffers, _unpack_all(model.buffers))


def pack_input(workspace: Workspace, command: Command, unit: int) -> UnitInput:
    """Read the input of a unit from the server's workspace."""
    if command.kind == "evaluate":
        return UnitInput(unit)
    return UnitInput(unit, int(workspace.clients[unit]), _pack_all(workspace.before.get(unit)))


def unpack_input(workspace: Workspace, slot: int, found: UnitInput) -> int:
    """Put the input of a unit into a worker's workspace; return the unit to run there."""
    if found.client is None:
        return found.unit
    workspace.clients[slot] = found.client
    workspace.before.put(slot, _unpack_all(found.state))
    return slot


def pack_output(workspace: Workspace, command: Command, place: int | Shard) -> UnitOutput:
    """Return what a unit wrote, as views that are valid until the slot is used again."""
    arrays = {name: pack(view) for name, view in _written(workspace, command, place).items()}
    if command.kind != "train" or isinstance(place, Shard):
        return UnitOutput(arrays)
    state, buffers = workspace.after.get(place), workspace.buffers.get(place)
    return UnitOutput(arrays, _pack_all(state), _pack_all(buffers))


def unpack_output(
    workspace: Workspace, command: Command, place: int | Shard, found: UnitOutput
) -> None:
    """Write an output into the server's workspace, where a local worker would have written it."""
    for name, view in _written(workspace, command, place).items():
        view.copy_(unpack(found.arrays[name]))
    if command.kind == "train" and not isinstance(place, Shard):
        workspace.after.put(place, _unpack_all(found.state))
        workspace.buffers.put(place, _unpack_all(found.buffers))


def _written(workspace: Workspace, command: Command, place: int | Shard) -> dict[str, Tensor]:
    """Return the parts of a workspace that a unit writes, apart from states and buffers."""
    if isinstance(place, Shard):
        span = slice(place.start, place.stop)
        losses, correct = workspace.losses[place.split], workspace.correct[place.split]
        return {"losses": losses[span], "correct": correct[span]}
    if command.kind == "personal":
        return {"scores": torch.from_numpy(workspace.scores[place])}
    report = torch.from_numpy(workspace.report[place])
    if command.kind == "loss":
        return {"loss": report[_LOSS : _LOSS + 1]}
    return {"report": report, "update": workspace.updates[place]}


def _pack_all(tensors: Mapping[str, Tensor] | None) -> PackedTensors | None:
    return None if tensors is None else {name: pack(value) for name, value in tensors.items()}


def _unpack_all(packed: PackedTensors | None) -> dict[str, Tensor] | None:
    return None if packed is None else {name: unpack(value) for name, value in packed.items()}
