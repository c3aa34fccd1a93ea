"""What the Ray executor does when results are lost, with a stand-in for Ray in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedcraft.cluster import worker_pool
from fedcraft.cluster.ray_executor import RayExecutor
from fedcraft.data import federate, load
from fedcraft.engine import WorkerError
from fedcraft.engine.executors.job import SPLITS, Command, Job, Workspace
from fedcraft.engine.executors.units import UnitRunner
from fedcraft.engine.interrupt import Halt
from fedcraft.local import local_objective
from fedcraft.models import build

exceptions = pytest.importorskip("ray.exceptions")

SLOTS = 12
TRAIN = Command("train", 0, 0.1)


class FakeActor:
    def __init__(self, ray: FakeRay, kind: type) -> None:
        self._ray, self._worker = ray, kind()
        self.prepare = SimpleNamespace(remote=self._calling("prepare"))
        self.run = SimpleNamespace(remote=self._calling("run"))

    def _calling(self, name: str) -> Callable[..., object]:
        return lambda *arguments: self._ray.call(self._worker, name, arguments)


class FakeRay:
    """Ray in one process: calls are done at once, unless ``faults`` has an error for the n-th."""

    exceptions = exceptions

    def __init__(
        self,
        faults: dict[int, Exception],
        forever: Exception | None = None,
        newcomer: Exception | None = None,
    ) -> None:
        self.newcomer = newcomer  # what the first newcomer after the start dies of
        self.results: dict[object, Any] = {}
        self.faults, self.forever = faults, forever
        self.calls, self.killed, self.most_under_way = 0, 0, 0

    def remote(self, **options: Any) -> Callable[[type], Any]:
        return lambda kind: SimpleNamespace(remote=lambda: FakeActor(self, kind))

    def put(self, value: Any) -> Any:
        return value

    def call(self, worker: Any, name: str, arguments: tuple[Any, ...]) -> object:
        ref = object()
        if name == "run":
            self.calls += 1
        fault = self.faults.pop(self.calls, self.forever) if name == "run" else None
        if name == "prepare" and self.calls:
            fault, self.newcomer = self.newcomer, None
        # Ray copies what is returned before the actor does anything else.
        self.results[ref] = fault or copy.deepcopy(getattr(worker, name)(*arguments))
        self.most_under_way = max(self.most_under_way, len(self.results))
        return ref

    def wait(self, refs: list[object], *, num_returns: int, timeout: float) -> Any:
        return refs[:num_returns], refs[num_returns:]

    def get(self, ref: object) -> Any:
        found = self.results.pop(ref)
        if isinstance(found, Exception):
            raise found
        return found

    def kill(self, actor: FakeActor) -> None:
        self.killed += 1


@pytest.fixture(autouse=True)
def _here(monkeypatch) -> Iterator[None]:
    context = SimpleNamespace(get_node_id=lambda: "here")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(scope="module")
def job() -> Job:
    dataset = load("digits")
    federation = federate(dataset, "dirichlet", SLOTS, seed=1, alpha=0.5, min_size=5)
    return Job(
        module=build("mlp", input_shape=dataset.input_shape, classes=10, seed=2, hidden=(8,)),
        objective=local_objective("plain"),
        federation=federation,
        tensors=federation.tensors(),
        epochs=1,
        batch_size=32,
        seed=3,
        evaluate_batch=64,
    )


def make_workspace(job: Job) -> Workspace:
    flat = torch.cat([value.detach().flatten() for value in job.module.parameters()])
    samples = {split: int(getattr(job.federation, split).indices.size) for split in SPLITS}
    workspace = Workspace(SLOTS, flat.numel(), flat.dtype, samples, 100)
    workspace.theta.copy_(flat)
    workspace.clients[:] = range(SLOTS)
    return workspace


def executor_on(
    ray: FakeRay, job: Job, workspace: Workspace, workers: int = 2, stop_requested: Any = None
) -> RayExecutor:
    connection = SimpleNamespace(ray=ray, node="here", close=lambda: None)
    return RayExecutor(connection, job, workspace, workers, stop_requested or (lambda: False))


def expected_updates(job: Job) -> torch.Tensor:
    workspace = make_workspace(job)
    runner = UnitRunner(job, workspace)
    for slot in range(SLOTS):
        runner.run(TRAIN, slot)
    return workspace.updates


def died() -> Exception:
    return exceptions.ActorDiedError()


def unavailable() -> Exception:
    return exceptions.ActorUnavailableError("the network", b"x" * 16)


def lost() -> Exception:
    return exceptions.ObjectLostError("a" * 56, None, "")


def no_memory() -> Exception:
    return exceptions.OutOfMemoryError("killed by the node's memory monitor")


@pytest.mark.parametrize(
    ("fault", "replaced"), [(died, 1), (unavailable, 1), (lost, 0)], ids=["died", "away", "lost"]
)
def test_what_is_lost_is_done_again(job, fault, replaced):
    ray, workspace = FakeRay({2: fault()}), make_workspace(job)
    executor = executor_on(ray, job, workspace)
    executor.run(TRAIN, range(SLOTS))
    assert torch.equal(workspace.updates, expected_updates(job))
    assert ray.killed == replaced
    assert executor.size == 2


@pytest.mark.parametrize("fault", [died, lost, no_memory])
def test_a_newcomer_that_dies_at_its_start_is_replaced_too(job, fault):
    ray, workspace = FakeRay({2: died()}, newcomer=fault()), make_workspace(job)
    executor = executor_on(ray, job, workspace)
    executor.run(TRAIN, range(SLOTS))
    assert torch.equal(workspace.updates, expected_updates(job))
    assert ray.newcomer is None
    assert executor.size == 2


def test_workers_that_keep_dying_are_an_error(job):
    ray = FakeRay({}, forever=died())
    with pytest.raises(WorkerError, match="4 workers were lost over the same unit"):
        executor_on(ray, job, make_workspace(job)).run(TRAIN, range(SLOTS))


def test_few_updates_are_under_way_at_any_time(job):
    ray = FakeRay({})
    executor_on(ray, job, make_workspace(job), workers=3).run(TRAIN, range(SLOTS))
    assert ray.most_under_way <= 6
    assert ray.results == {}


def test_a_phase_that_may_be_dropped_is_dropped_when_the_user_asks(job):
    answers = iter([False, False, True])
    executor = executor_on(
        FakeRay({}), job, make_workspace(job), stop_requested=lambda: next(answers)
    )
    with pytest.raises(Halt):
        executor.run(TRAIN, range(SLOTS))


def test_an_evaluation_is_not_dropped(job):
    workspace = make_workspace(job)
    executor = executor_on(FakeRay({}), job, workspace, stop_requested=lambda: True)
    executor.run(Command("evaluate", 0, splits=("test",)), range(1))
    assert (workspace.losses["test"] > 0).any()


def test_a_cluster_without_room_is_an_error_in_the_end(job, monkeypatch):
    monkeypatch.setattr(worker_pool, "_START_SECONDS", 0.0)
    ray = FakeRay({})
    ray.wait = lambda refs, **_: ([], refs)
    with pytest.raises(WorkerError, match="no worker could start"):
        executor_on(ray, job, make_workspace(job))


def test_closing_ends_every_worker(job):
    ray = FakeRay({})
    executor = executor_on(ray, job, make_workspace(job), workers=3)
    executor.close()
    assert ray.killed == 3
    assert executor.pids() == []
