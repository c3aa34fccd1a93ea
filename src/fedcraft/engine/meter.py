"""Where the seconds and the memory of a round go."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Meter", "peak_memory_mb"]

_PHASES = ("train", "aggregate", "evaluate")


class Meter:
    """Wall seconds by phase, and how long the workers idled while others still trained."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys((*_PHASES, "idle"), 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def idle(self, workers: int, busy: float) -> None:
        """Note the mean idle time of a worker in the training phase (part of ``train``)."""
        self.seconds["idle"] = max(0.0, self.seconds["train"] - busy / workers)

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call, rounded to microseconds, and start anew."""
        taken = {name: round(value, 6) for name, value in self.seconds.items()}
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        return taken


def peak_memory_mb(workers: Iterable[int]) -> float:
    """Return the largest resident memory of this process plus that of its workers so far, in MiB.

    Pages that processes share are counted in each of them, so this is an upper bound.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return round((own + sum(_peak_bytes(pid) for pid in workers)) / 2**20, 1)


def _peak_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    lines = [line for line in text.splitlines() if line.startswith("VmHWM")]
    return int(lines[0].split()[1]) * 1024 if lines else 0
