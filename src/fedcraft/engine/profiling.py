"""Measures the time and the memory of a round."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_PHASES = ("train", "aggregate", "evaluate")
_GAUGE_SECONDS = 2.0


class PhaseTimer:
    """Wall seconds by phase, and how long workers waited for others that still trained."""

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

    def give_back(self, seconds: Mapping[str, float]) -> None:
        """Add seconds that an earlier :meth:`take` returned."""
        for name, value in seconds.items():
            self.seconds[name] += value

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call, rounded to microseconds, and restart."""
        taken = {name: round(value, 6) for name, value in self.seconds.items()}
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        return taken


class PeakMemory:
    """The largest memory of this process and its workers, in MiB, sampled now and then.

    For this process the kernel reports the peak since this object was made; where it cannot reset
    earlier peaks (not Linux, or /proc is read-only), they count too. Two objects in use at the same
    time may each miss a peak. For workers only private memory counts, because they share the rest
    of their pages (data, update matrix, code) with the parent.
    """

    def __init__(self) -> None:
        self._own = self._workers = self._next = 0.0
        with suppress(OSError):  # lets the kernel forget the earlier peak
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def peak(self, workers: Iterable[int]) -> float:
        """Return the peak so far; workers are sampled every few seconds at most."""
        if time.monotonic() >= self._next:
            self._workers = max(self._workers, sum(_private_bytes(pid) for pid in workers))
            self._next = time.monotonic() + _GAUGE_SECONDS
        self._own = max(self._own, _peak_bytes())
        return round((self._own + self._workers) / 2**20, 1)


def _peak_bytes() -> int:
    """Return the high-water mark of this process's memory.

    On Linux not ``ru_maxrss``: that one cannot be reset, and starts at the peak of the parent.
    """
    with suppress(OSError):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        for line in lines:
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _private_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    private = [line.split()[1] for line in text.splitlines() if line.startswith("Private_")]
    return 1024 * sum(int(kilobytes) for kilobytes in private)
