"""The choice of a run's executor, by name or by the shape of the run; never by a clock."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch

from fedcraft.config.settings import Settings
from fedcraft.engine.executors.executor import Executor, SerialExecutor
from fedcraft.engine.executors.job import Job, Workspace
from fedcraft.engine.executors.processes import ProcessExecutor
from fedcraft.engine.executors.units import UnitRunner
from fedcraft.errors import ConfigError

# Executors from packages above this one, by the path of the function that makes them.
ADAPTERS: dict[str, str] = {"ray": "fedcraft.cluster:make_ray_executor"}

# Side by side, many small models train up to twice as fast on a CPU; others gain nothing.
_MANY_CLIENTS = 32
_SMALL_MODEL = 2**14  # parameters


def device_of(settings: Settings) -> torch.device:
    """Return where clients are trained: the GPU if there is one, unless ``device`` says cpu."""
    wanted = settings.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: expected 'cpu' or 'auto', found 'cuda', but torch sees no GPU")
    if wanted == "cpu" or settings.executor in ADAPTERS:
        return torch.device("cpu")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def resolve(settings: Settings, job: Job, remembered: str | None) -> str:
    """Return the executor a run uses.

    ``auto`` means vectorized for many clients with a small model and on a GPU, otherwise processes
    (serial for one worker): the same configuration always has the same executor on the same device.
    A resumed run keeps its executor. Only serial and processes give the same bits as each other.
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
    if _worth_grouping(settings, job) and _can_group(settings, job):
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
    method = settings.start_method
    if job.device.type != "cpu" and method == "auto":
        method = "spawn"  # a forked process cannot use CUDA
    return ProcessExecutor(job, workspace, settings.worker_count, stop_requested, method)


def _can_group(settings: Settings, job: Job) -> bool:
    attraction = settings.client_lr * getattr(job.objective, "mu", 0.0)  # the rate only falls
    return attraction < 1 and job.group_trainer() is not None


def _worth_grouping(settings: Settings, job: Job) -> bool:
    if job.device.type != "cpu":
        return True
    if job.precision != torch.float32:  # only the written-out float32 steps gain by it
        return False
    parameters = sum(parameter.numel() for parameter in job.module.parameters())
    return settings.clients_per_round >= _MANY_CLIENTS and parameters <= _SMALL_MODEL
