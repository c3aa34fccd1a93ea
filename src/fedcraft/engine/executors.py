"""From a setting to a crew: who trains the clients of this run."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable

from fedcraft.engine.bench import Bench
from fedcraft.engine.crew import Crew, SerialCrew
from fedcraft.engine.job import Desk, Job
from fedcraft.engine.processes import ProcessCrew
from fedcraft.engine.scratch import scratch_model
from fedcraft.engine.settings import Settings

__all__ = ["ADAPTERS", "hire", "resolve"]

# Executors from the rooms above this one, by the path of their ``hire``.
ADAPTERS: dict[str, str] = {"ray": "fedcraft.cluster:hire"}


def resolve(settings: Settings, remembered: str | None = None) -> str:
    """Return the executor a run uses; a resumed one keeps the one it began with."""
    if settings.executor != "auto":
        return settings.executor
    if remembered is not None:
        return remembered
    return "processes" if settings.worker_count > 1 else "serial"


def hire(
    executor: str, settings: Settings, job: Job, desk: Desk, halted: Callable[[], bool]
) -> Crew:
    """Return the crew of an executor."""
    if executor == "serial":
        bench = Bench(job, desk, scratch_model(copy.deepcopy(job.module)))
        return SerialCrew(bench, halted)
    if executor in ADAPTERS:
        module, _, name = ADAPTERS[executor].partition(":")
        crew: Crew = getattr(importlib.import_module(module), name)(settings, job, desk, halted)
        return crew
    return ProcessCrew(job, desk, settings.worker_count, halted, settings.start_method)
