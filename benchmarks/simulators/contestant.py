"""A contestant of the benchmark: a program that takes turns with the others."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Contestant"]

_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 900.0  # seconds for one answer
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": str(_ROOT),
}


@dataclass
class Contestant:
    """A program that takes turns: one process, or several that get the same requests."""

    name: str
    commands: list[list[str]]
    environments: list[dict[str, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    start_up: float = 0.0
    memory_mb: float = 0.0
    missing: str = ""
    accuracy: float = float("nan")

    def start(self) -> None:
        """Start it and wait until it is ready; print why if it cannot start, and leave it out."""
        started = time.perf_counter()
        extra = self.environments or [{}] * len(self.commands)
        self._processes = [
            subprocess.Popen(
                command,
                cwd=_ROOT,
                env=os.environ | _ENVIRONMENT | more,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for command, more in zip(self.commands, extra, strict=True)
        ]
        if any(self._hear(process) is None for process in self._processes):
            self.missing = "did not start"
            self.stop()
        self.start_up = time.perf_counter() - started

    def ask(self, wish: dict[str, Any]) -> dict[str, Any] | None:
        """Send a request and return the answer of the slowest process."""
        if self.missing:
            return None
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(wish) + "\n")
            process.stdin.flush()
        answers = [self._hear(process) for process in self._processes]
        found = [answer for answer in answers if answer is not None]
        if len(found) < len(answers):
            self.missing = "died or gave no answer"
            self.stop()
            return None
        self.memory_mb = max(self.memory_mb, sum(_tree_mb(p.pid) for p in self._processes))
        return max(found, key=lambda answer: float(answer["seconds"]))

    def train(self, rounds: int) -> None:
        """Take one turn of training."""
        answer = self.ask({"do": "train", "rounds": rounds})
        if answer is not None:
            self.seconds.append(answer["seconds"] / rounds)
            self.samples.append(answer["samples"] / rounds)

    def evaluate(self) -> None:
        """Take one turn of evaluating all clients."""
        answer = self.ask({"do": "evaluate"})
        if answer is not None:
            self.evaluations.append(answer["seconds"])
            self.accuracy = answer["accuracy"]

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def per_sample(self) -> list[float]:
        """Seconds per sample, turn by turn: some programs choose their cohorts themselves."""
        return [s / n for s, n in zip(self.seconds, self.samples, strict=True)]

    @staticmethod
    def _hear(process: subprocess.Popen[str]) -> dict[str, Any] | None:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], _PATIENCE)[0]:
            return None
        line = process.stdout.readline()
        return json.loads(line) if line else None


def _tree_mb(pid: int) -> float:
    """Return the memory of a process and its children, shared pages divided among their users."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    own = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return own / 1024 + sum(_tree_mb(int(child)) for child in children)
