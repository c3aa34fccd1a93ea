"""Measures the time of a round by phase on this machine, with each executor."""

from __future__ import annotations

import time
from typing import Any

from fedcraft import engine
from fedcraft.config.build import build_federation, build_method, build_model
from fedcraft.config.schema import Config
from fedcraft.errors import ConfigError

EXECUTORS = ("serial", "processes", "vectorized")
_WARM_UP = 2  # rounds not counted: workers start, caches fill
_PHASES = ("train", "aggregate", "evaluate", "idle")


def bench(config: Config) -> list[dict[str, Any]]:
    """Run ``config`` with each executor, keep nothing, and return seconds per round by phase.

    ``evaluate`` is the time of one evaluation of all clients, ``start`` that of everything before
    the first round. An executor that cannot do this run is left out; if none can, the error
    of the last one is raised.
    """
    federation = build_federation(config)
    model = build_model(config, federation.dataset)
    method = build_method(config)
    rows: list[dict[str, Any]] = []
    refusal: ConfigError | None = None
    for executor in EXECUTORS:
        clock = _Clock()
        try:
            engine.run(method, federation, model, config.but(executor=executor), callbacks=(clock,))
        except ConfigError as error:
            refusal = error
        else:
            rows.append({"executor": executor, **clock.row()})
    if refusal is not None and not rows:
        raise refusal
    return rows


class _Clock(engine.Callback):
    """Collects the seconds that the engine reports."""

    def __init__(self) -> None:
        self._made = time.perf_counter()
        self._start = 0.0
        self._info: engine.RunInfo | None = None
        self._seconds: list[dict[str, float]] = []
        self._memory = 0.0

    def on_start(self, info: engine.RunInfo) -> None:
        self._info = info
        self._start = time.perf_counter() - self._made

    def on_round(self, record: Any) -> None:
        self._seconds.append(record["seconds"])
        self._memory = record["peak_memory_mb"]

    def row(self) -> dict[str, Any]:
        """Mean seconds per round after the warm-up."""
        counted = self._seconds[_WARM_UP:] or self._seconds
        means = {phase: sum(s[phase] for s in counted) / len(counted) for phase in _PHASES}
        evaluated = [s["evaluate"] for s in self._seconds if s["evaluate"] > 0]
        means["evaluate"] = sum(evaluated) / len(evaluated) if evaluated else 0.0
        workers = self._info.workers if self._info else 0
        return {"workers": workers, "start": self._start, **means, "peak_memory_mb": self._memory}
