"""Packed tensors arrive unchanged, and results go where a local worker would have put them."""

from __future__ import annotations

import pickle
import sys
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedcraft.cluster import serialization
from fedcraft.cluster.ray_executor import _Phase, _Task
from fedcraft.cluster.ray_worker import RayWorker
from fedcraft.data import federate, load
from fedcraft.engine.executors.job import SPLITS, Command, Job, Workspace
from fedcraft.engine.executors.units import UnitFailure, UnitRunner
from fedcraft.local import local_objective
from fedcraft.models import build

SLOTS = 4


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))


@pytest.fixture(scope="module", params=["personal", "buffers"])
def job(request) -> Job:
    dataset = load("digits")
    federation = federate(dataset, "dirichlet", SLOTS, seed=1, alpha=0.5, min_size=20)
    personal = request.param == "personal"
    return Job(
        module=build("mlp", input_shape=(64,), classes=10, hidden=(8,)) if personal else normed(),
        objective=local_objective("ditto", lam=0.5) if personal else local_objective("plain"),
        federation=federation,
        tensors=federation.tensors(),
        epochs=1,
        batch_size=32,
        seed=3,
        evaluate_batch=64,
    )


def server_workspace(job: Job) -> Workspace:
    flat = torch.cat([value.detach().flatten() for value in job.module.parameters()])
    buffers = {name: value + 1 for name, value in job.module.named_buffers()}
    samples = {split: int(getattr(job.federation, split).indices.size) for split in SPLITS}
    workspace = Workspace(SLOTS, flat.numel(), flat.dtype, samples, 100, buffer_bytes=1024)
    workspace.theta.copy_(flat)
    workspace.initial.copy_(flat + 0.01)
    workspace.clients[:] = range(SLOTS)
    if job.objective.personal:
        workspace.before.put(1, {"personal": flat * 0.9})
    workspace.buffers.put(workspace.broadcast_buffers, buffers or None)
    return workspace


def sent(value):
    """As Ray does it: arrays beside the pickle, and read-only when they arrive."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(content, buffers=[bytes(buffer.raw()) for buffer in buffers])


@pytest.fixture
def worker(job, monkeypatch) -> RayWorker:
    context = SimpleNamespace(get_node_id=lambda: "here")
    ray = SimpleNamespace(get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    made = RayWorker()
    made.prepare(sent(serialization.pack_job(job, server_workspace(job), SLOTS)))
    yield made
    torch.set_flush_denormal(False)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).t(),
        torch.tensor(7),
        torch.zeros(0, 5),
        torch.randn(5).to(torch.bfloat16),
        torch.tensor([True, False]),
    ],
    ids=["float32", "transposed", "scalar", "empty", "bfloat16", "bool"],
)
def test_a_tensor_arrives_as_it_left(tensor):
    found = serialization.unpack(sent(serialization.pack(tensor)))
    assert found.dtype == tensor.dtype
    assert found.shape == tensor.shape
    assert torch.equal(found, tensor)


def test_samples_travel_once(job):
    packed = serialization.pack_job(job, server_workspace(job), SLOTS)
    assert packed.job.federation.dataset is None
    assert packed.job.tensors.inputs.numel() == packed.job.tensors.labels.numel() == 0
    assert packed.inputs.ctypes.data == job.tensors.inputs.data_ptr()
    assert job.federation.dataset is not None


def test_a_data_set_on_disk_travels_as_a_plain_array(job, tmp_path):
    dataset = job.federation.dataset
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(len(dataset), 64))
    mapped[:] = job.tensors.inputs.reshape(len(dataset), 64)
    plain = replace(dataset, inputs=mapped, mean=(0.0,), std=(1.0,), scale=255.0)
    federation = replace(job.federation, dataset=plain)
    moved = replace(job, federation=federation, tensors=federation.tensors())
    packed = serialization.pack_job(moved, server_workspace(job), SLOTS)
    assert type(packed.inputs) is np.ndarray
    arrived, _ = serialization.unpack_job(sent(packed))
    assert torch.equal(arrived.tensors.inputs, moved.tensors.inputs)


@pytest.mark.parametrize(
    "command",
    [
        Command("train", 5, 0.1, report_loss=True),
        Command("loss", 5),
        Command("personal", 5, 0.1, splits=("test", "train")),
        Command("evaluate", 5, splits=("test", "train")),
    ],
    ids=lambda command: command.kind,
)
def test_a_phase_far_away_leaves_the_workspace_of_one_done_here(job, worker, command):
    here, there = server_workspace(job), server_workspace(job)
    places = job.shards(command.splits) if command.kind == "evaluate" else range(SLOTS)
    units = range(len(places))
    runner = UnitRunner(job, here)
    for unit in units:
        runner.run(command, unit)
    inputs = [sent(serialization.pack_input(there, command, unit)) for unit in units]
    model, initial = (
        sent(serialization.pack_broadcast(there)),
        sent(serialization.pack(there.initial)),
    )
    for start in range(0, len(inputs), SLOTS):
        some = inputs[start : start + SLOTS]
        outputs = sent(worker.run(command, some, model, initial))
        for found, output in zip(some, outputs, strict=True):
            serialization.unpack_output(there, command, places[found.unit], output)
    here.report[:, -1] = there.report[:, -1] = 0.0  # seconds
    np.testing.assert_array_equal(here.report, there.report)
    np.testing.assert_array_equal(here.scores, there.scores)
    assert torch.equal(here.updates, there.updates)
    for split in command.splits:
        assert torch.equal(here.losses[split], there.losses[split])
        assert torch.equal(here.correct[split], there.correct[split])
    for slot in range(SLOTS):
        assert_same_tensors(here.after.get(slot), there.after.get(slot))
        assert_same_tensors(here.buffers.get(slot), there.buffers.get(slot))
    if command.kind == "train":
        assert (there.after.get(0) is not None) == job.objective.personal
        assert (there.buffers.get(0) is None) == job.objective.personal


def assert_same_tensors(found, expected):
    assert (found or {}).keys() == (expected or {}).keys()
    assert all(torch.equal(found[name], expected[name]) for name in found or {})


def test_a_failing_client_is_named_with_its_traceback(job, worker):
    def broken(*_):
        raise ZeroDivisionError("own trouble")

    workspace = server_workspace(job)
    object.__setattr__(worker._runner.job, "data", broken)
    inputs = [serialization.pack_input(workspace, Command("train", 0, 0.1), 2)]
    found = worker.run(
        Command("train", 0, 0.1),
        inputs,
        serialization.pack_broadcast(workspace),
        serialization.pack(workspace.initial),
    )
    assert isinstance(found, UnitFailure)
    assert found.client == 2
    assert "in broken" in found.text
    assert "own trouble" in found.text


def phase(units: int) -> _Phase:
    return _Phase(Command("train", 0), deque(range(units)), (None, None), [])


def test_a_task_takes_one_long_unit_and_a_few_short_ones():
    left = phase(64)
    assert left.take(8, 2) == [0, 63, 62, 61, 60, 59, 58, 57]
    assert left.take(8, 4) == [1, 56, 55]
    assert phase(3).take(8, 2) == [0]


def test_units_of_a_lost_task_come_first_again():
    left = phase(6)
    lost = _Task(None, left.take(1, 1) + left.take(1, 1))
    left.repeat(lost, RuntimeError("gone"))
    assert list(left.waiting) == [0, 1, 2, 3, 4, 5]
