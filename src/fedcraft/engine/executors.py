"""From a setting to a crew: who trains the clients of this run, and how many at once."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable

import torch

from fedcraft.engine.bench import Bench
from fedcraft.engine.crew import Crew, SerialCrew
from fedcraft.engine.group import group_of, group_size
from fedcraft.engine.job import Command, Desk, Job
from fedcraft.engine.processes import ProcessCrew
from fedcraft.engine.sampling import draw_clients
from fedcraft.engine.settings import Settings
from fedcraft.errors import ConfigError

__all__ = ["ADAPTERS", "device_of", "hire", "resolve"]

# Executors from the rooms above this one, by the path of their ``hire``.
ADAPTERS: dict[str, str] = {"ray": "fedcraft.cluster:hire"}

_REPEATS = 3
_CLEARLY_FASTER = 1.25
_SHORT_RUN = 20  # rounds; below this a calibration costs more than it can save


def device_of(settings: Settings) -> torch.device:
    """Return where groups of clients are trained."""
    wanted = settings.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: expected 'cpu' or 'auto', found 'cuda', but torch sees no GPU")
    if wanted == "cpu" or settings.executor in ("serial", "processes", *ADAPTERS):
        return torch.device("cpu")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def resolve(settings: Settings, job: Job, desk: Desk, remembered: str | None) -> str:
    """Return the executor a run uses.

    ``auto`` means processes (serial for one worker), or vectorized if a short calibration shows
    that to be clearly faster; a resumed run keeps the one it began with. Only the choice between
    serial and processes is without influence on the bits: name the executor to be sure of them.
    """
    if settings.executor == "vectorized" and not _can_group(settings, job):
        raise ConfigError(
            "executor: 'vectorized' takes plain or proximal SGD (client_lr * mu < 1) with "
            "cross-entropy on a sequence of linear layers (on CUDA: on any module without "
            "buffers), which this run is not; use 'processes'"
        )
    if settings.executor != "auto":
        return settings.executor
    if remembered is not None:
        return remembered
    worth_a_try = settings.rounds >= _SHORT_RUN and _can_group(settings, job)
    if worth_a_try and _faster_in_groups(settings, job, desk):
        return "vectorized"
    return "processes" if settings.worker_count > 1 else "serial"


def hire(
    executor: str, settings: Settings, job: Job, desk: Desk, halted: Callable[[], bool]
) -> Crew:
    """Return the crew of an executor."""
    if executor in ADAPTERS:
        module, _, name = ADAPTERS[executor].partition(":")
        crew: Crew = getattr(importlib.import_module(module), name)(settings, job, desk, halted)
        return crew
    alone = settings.worker_count == 1 or job.device.type != "cpu"
    if executor == "serial" or (executor == "vectorized" and alone):
        desk.keep_states_private()
        return SerialCrew(Bench(job, desk), halted)
    return ProcessCrew(job, desk, settings.worker_count, halted, settings.start_method)


def _can_group(settings: Settings, job: Job) -> bool:
    # The rate falls or rises with every round, so its largest value is at one of the ends.
    lr = max(settings.client_lr_at(index) for index in (0, settings.rounds - 1))
    pull = lr * getattr(job.objective, "mu", 0.0)
    return pull < 1 and group_of(job.objective, job.module, job.device) is not None


def _faster_in_groups(settings: Settings, job: Job, desk: Desk) -> bool:
    """Time the first cohort's clients one by one and side by side, in seconds of this CPU."""
    clients = draw_clients(settings, len(job.federation), 0).present
    size = min(group_size(len(clients), job.device), len(clients))
    if size < 2:
        return False
    bench, lr = Bench(job, desk), settings.client_lr
    desk.theta.copy_(desk.initial)
    desk.clients[:size] = clients[:size]
    desk.seats[:size], desk.seats[-1] = range(size), size
    single, group = Command("train", 0, lr), Command("group", 0, lr, group=size)

    def one_by_one() -> None:
        for slot in range(size):
            bench.do(single, slot)

    alone = _seconds(one_by_one)
    return _CLEARLY_FASTER * _seconds(lambda: bench.do(group, 0)) < alone


def _seconds(work: Callable[[], None]) -> float:
    """Return the least CPU time of a few repeats: what else runs on the machine hardly matters."""
    work()
    least = float("inf")
    for _ in range(_REPEATS):
        started = time.thread_time()
        work()
        least = min(least, time.thread_time() - started)
    return least
