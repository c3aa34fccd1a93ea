"""One local step of a residual network: fedcraft's written-out step beside eager PyTorch, in turns.

    python -m benchmarks.steps [--turns 7] [--json FILE]

A step is one batch of 20 CIFAR images with plain SGD, on one thread, in seconds of its CPU. Eager
is ``backward()`` and ``torch.optim.SGD`` in the default memory order. Each contestant has a process
of its own, as a worker has; faults are the pages that a step has to fetch from the system.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["main"]

NETWORKS = ("resnet20", "resnet56", "resnet110")
_BATCH = 20


def _steps(network: str, kind: str) -> Callable[[], Any]:
    import torch
    from torch.nn.functional import cross_entropy

    from fedcraft.linalg.numerics import keep_freed_memory, one_thread
    from fedcraft.local.fast_sgd.model import scratch_model
    from fedcraft.models import build

    one_thread()
    module = build(network, input_shape=(3, 32, 32), classes=10, seed=0)
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(_BATCH, 3, 32, 32, generator=draw)
    labels = torch.randint(0, 10, (_BATCH,), generator=draw)
    if kind == "fedcraft":
        keep_freed_memory()
        model = scratch_model(module)
        return lambda: model.step(inputs, labels, cross_entropy, 0.01)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01)

    def step() -> None:
        optimiser.zero_grad()
        cross_entropy(module(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def _serve(network: str, kind: str) -> None:
    """Take one step per line of input and answer with its seconds and page faults."""
    step = _steps(network, kind)
    for _ in sys.stdin:
        faults, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.thread_time()
        step()
        seconds = time.thread_time() - start
        fetched = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        print(json.dumps([seconds, fetched]), flush=True)


def compete(network: str, turns: int) -> dict[str, Any]:
    """Return the medians of both contestants and the median ratio, after two steps to warm up."""
    command = [sys.executable, "-m", "benchmarks.steps", "--serve", network]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both: dict[str, Any] = {
        kind: subprocess.Popen([*command, kind], **pipes) for kind in ("eager", "fedcraft")
    }
    answers: dict[str, list[list[float]]] = {kind: [] for kind in both}
    for _ in range(turns + 2):
        for kind, process in both.items():
            process.stdin.write("step\n")
            process.stdin.flush()
            answers[kind].append(json.loads(process.stdout.readline()))
    for process in both.values():
        process.communicate()
    seconds = {kind: [answer[0] for answer in found[2:]] for kind, found in answers.items()}
    return {
        "network": network,
        "seconds": {kind: median(found) for kind, found in seconds.items()},
        "faults": {kind: median(a[1] for a in found[2:]) for kind, found in answers.items()},
        "ratio": median(
            ours / eager for ours, eager in zip(seconds["fedcraft"], seconds["eager"], strict=True)
        ),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve(*options.serve)
        return
    rows = []
    for network in NETWORKS:
        rows.append(compete(network, options.turns))
        print(json.dumps(rows[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
