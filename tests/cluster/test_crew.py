"""What the server does when answers get lost, tried on hands that are at hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedcraft.cluster import roster as roster_module
from fedcraft.cluster.crew import RayCrew
from fedcraft.data import federate, load
from fedcraft.engine import WorkerError
from fedcraft.engine.bench import Bench
from fedcraft.engine.crew import Halt
from fedcraft.engine.job import SPLITS, Command, Desk, Job
from fedcraft.local import local_objective
from fedcraft.models import build

exceptions = pytest.importorskip("ray.exceptions")

SLOTS = 12
TRAIN = Command("train", 0, 0.1)


class FakeActor:
    def __init__(self, ray: FakeRay, kind: type) -> None:
        self._ray, self._hand = ray, kind()
        self.prepare = SimpleNamespace(remote=self._calling("prepare"))
        self.do = SimpleNamespace(remote=self._calling("do"))

    def _calling(self, name: str) -> Callable[..., object]:
        return lambda *arguments: self._ray.call(self._hand, name, arguments)


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

    def call(self, hand: Any, name: str, arguments: tuple[Any, ...]) -> object:
        ref = object()
        if name == "do":
            self.calls += 1
        fault = self.faults.pop(self.calls, self.forever) if name == "do" else None
        if name == "prepare" and self.calls:
            fault, self.newcomer = self.newcomer, None
        # Ray copies what is returned before the actor does anything else.
        self.results[ref] = fault or copy.deepcopy(getattr(hand, name)(*arguments))
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


def make_desk(job: Job) -> Desk:
    flat = torch.cat([value.detach().flatten() for value in job.module.parameters()])
    samples = {split: int(getattr(job.federation, split).indices.size) for split in SPLITS}
    desk = Desk(SLOTS, flat.numel(), flat.dtype, samples, 100)
    desk.theta.copy_(flat)
    desk.clients[:] = range(SLOTS)
    return desk


def crew_on(ray: FakeRay, job: Job, desk: Desk, hands: int = 2, halted: Any = None) -> RayCrew:
    session = SimpleNamespace(ray=ray, node="here", close=lambda: None)
    return RayCrew(session, job, desk, hands, halted or (lambda: False))


def expected_updates(job: Job) -> torch.Tensor:
    desk = make_desk(job)
    bench = Bench(job, desk)
    for slot in range(SLOTS):
        bench.do(TRAIN, slot)
    return desk.updates


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
    ray, desk = FakeRay({2: fault()}), make_desk(job)
    crew = crew_on(ray, job, desk)
    crew.run(TRAIN, range(SLOTS))
    assert torch.equal(desk.updates, expected_updates(job))
    assert ray.killed == replaced
    assert crew.size == 2


@pytest.mark.parametrize("fault", [died, lost, no_memory])
def test_a_newcomer_that_dies_at_its_start_is_replaced_too(job, fault):
    ray, desk = FakeRay({2: died()}, newcomer=fault()), make_desk(job)
    crew = crew_on(ray, job, desk)
    crew.run(TRAIN, range(SLOTS))
    assert torch.equal(desk.updates, expected_updates(job))
    assert ray.newcomer is None
    assert crew.size == 2


def test_workers_that_keep_dying_are_an_error(job):
    ray = FakeRay({}, forever=died())
    with pytest.raises(WorkerError, match="4 workers were lost over the same unit"):
        crew_on(ray, job, make_desk(job)).run(TRAIN, range(SLOTS))


def test_few_updates_are_under_way_at_any_time(job):
    ray = FakeRay({})
    crew_on(ray, job, make_desk(job), hands=3).run(TRAIN, range(SLOTS))
    assert ray.most_under_way <= 6
    assert ray.results == {}


def test_a_phase_that_may_be_dropped_is_dropped_when_the_user_asks(job):
    answers = iter([False, False, True])
    crew = crew_on(FakeRay({}), job, make_desk(job), halted=lambda: next(answers))
    with pytest.raises(Halt):
        crew.run(TRAIN, range(SLOTS))


def test_an_evaluation_is_not_dropped(job):
    desk = make_desk(job)
    crew = crew_on(FakeRay({}), job, desk, halted=lambda: True)
    crew.run(Command("evaluate", 0, splits=("test",)), range(1))
    assert (desk.losses["test"] > 0).any()


def test_a_cluster_without_room_is_an_error_in_the_end(job, monkeypatch):
    monkeypatch.setattr(roster_module, "_START_SECONDS", 0.0)
    ray = FakeRay({})
    ray.wait = lambda refs, **_: ([], refs)
    with pytest.raises(WorkerError, match="no worker could start"):
        crew_on(ray, job, make_desk(job))


def test_closing_ends_every_worker(job):
    ray = FakeRay({})
    crew = crew_on(ray, job, make_desk(job), hands=3)
    crew.close()
    assert ray.killed == 3
    assert crew.pids() == []
