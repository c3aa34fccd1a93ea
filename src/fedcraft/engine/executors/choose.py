"""The choice of a run's executor, by name or by a short calibration."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable

import torch

from fedcraft.config.settings import Settings
from fedcraft.engine.executors.executor import Executor, SerialExecutor
from fedcraft.engine.executors.job import Command, Job, Workspace
from fedcraft.engine.executors.processes import ProcessExecutor
from fedcraft.engine.executors.units import UnitRunner
from fedcraft.engine.sampling import draw_clients
from fedcraft.errors import ConfigError
from fedcraft.local.fast_sgd.vectorized import group_size, make_group_trainer

# Executors from packages above this one, by the path of the function that makes them.
ADAPTERS: dict[str, str] = {"ray": "fedcraft.cluster:make_ray_executor"}

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


def resolve(settings: Settings, job: Job, workspace: Workspace, remembered: str | None) -> str:
    """Return the executor a run uses.

    ``auto`` means processes (serial for one worker), or vectorized if a short calibration shows
    that to be clearly faster; a resumed run keeps its executor. Only serial and processes give the
    same bits: name the executor if you need the same bits again.
    """
    if settings.executor == "vectorized" and not _can_group(settings, job):
        raise ConfigError(
            "executor: 'vectorized' takes plain or proximal SGD (client_lr * mu < 1) with "
            "cross-entropy on a sequence of linear layers (on CUDA: on any module without "
            "buffers), and this run differs; use 'processes'"
        )
    if settings.executor != "auto":
        return settings.executor
    if remembered is not None:
        return remembered
    worth_a_try = settings.rounds >= _SHORT_RUN and _can_group(settings, job)
    if worth_a_try and _faster_in_groups(settings, job, workspace):
        return "vectorized"
    return "processes" if settings.worker_count > 1 else "serial"


def make_executor(
    name: str,
    settings: Settings,
    job: Job,
    workspace: Workspace,
    stop_requested: Callable[[], bool],
) -> Executor:
    """Return the executor called ``name``."""
    if name in ADAPTERS:
        module, _, factory = ADAPTERS[name].partition(":")
        make = getattr(importlib.import_module(module), factory)
        executor: Executor = make(settings, job, workspace, stop_requested)
        return executor
    alone = settings.worker_count == 1 or job.device.type != "cpu"
    if name == "serial" or (name == "vectorized" and alone):
        workspace.keep_states_private()
        return SerialExecutor(UnitRunner(job, workspace), stop_requested)
    return ProcessExecutor(
        job, workspace, settings.worker_count, stop_requested, settings.start_method
    )


def _can_group(settings: Settings, job: Job) -> bool:
    attraction = settings.client_lr * getattr(job.objective, "mu", 0.0)  # the rate only falls
    return attraction < 1 and make_group_trainer(job.objective, job.module, job.device) is not None


def _faster_in_groups(settings: Settings, job: Job, workspace: Workspace) -> bool:
    """Time the first cohort's clients one by one and side by side, in seconds of this CPU."""
    clients = draw_clients(settings, len(job.federation), 0).present
    size = min(group_size(len(clients), job.device), len(clients))
    if size < 2:
        return False
    runner, lr = UnitRunner(job, workspace), settings.client_lr
    workspace.theta.copy_(workspace.initial)
    workspace.clients[:size] = clients[:size]
    workspace.group_slots[:size], workspace.group_slots[-1] = range(size), size
    single, group = Command("train", 0, lr), Command("group", 0, lr, group=size)

    def one_by_one() -> None:
        for slot in range(size):
            runner.run(single, slot)

    alone = _seconds(one_by_one)
    return _CLEARLY_FASTER * _seconds(lambda: runner.run(group, 0)) < alone


def _seconds(work: Callable[[], None]) -> float:
    """Return the least CPU time of a few repeats, so that other programs hardly matter."""
    work()
    least = float("inf")
    for _ in range(_REPEATS):
        started = time.thread_time()
        work()
        least = min(least, time.thread_time() - started)
    return least
