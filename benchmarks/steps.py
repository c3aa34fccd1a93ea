"""One local step of a convolutional network: fedcraft's beside eager PyTorch, in turns.

    python -m benchmarks.steps [--turns 7] [--json FILE]

A step is one batch of CIFAR images (20, for the CNN 50) with plain SGD, on one thread, in seconds
of its CPU. Eager is ``backward()`` and ``torch.optim.SGD`` in the default memory order; bfloat16 is
``precision = "bfloat16"``. Each contestant has a process of its own, as a worker has; faults are
the pages that a step has to fetch from the system. ``update_error`` is what bfloat16 changes in an
update of 8 steps, as a share of its length.
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

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedcraft.linalg.numerics import keep_freed_memory, one_thread
from fedcraft.local.fast_sgd.model import scratch_model
from fedcraft.local.objective import autocast
from fedcraft.models import FlatModel, build

__all__ = ["main"]

BATCHES = {"cnn": 50, "resnet20": 20, "resnet56": 20, "resnet110": 20}
KINDS = ("eager", "fedcraft", "bfloat16")
_STEPS, _RATE = 8, 0.01


def _batch(network: str, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(BATCHES[network], 3, 32, 32, generator=draw)
    return inputs, torch.randint(0, 10, (len(inputs),), generator=draw)


def _trainer(network: str, kind: str) -> tuple[FlatModel, Callable[[Tensor, Tensor], Any]]:
    """Return fedcraft's model and its step."""
    model = scratch_model(build(network, input_shape=(3, 32, 32), classes=10, seed=0))
    precision = torch.bfloat16 if kind == "bfloat16" else torch.float32

    def step(inputs: Tensor, labels: Tensor) -> None:
        with autocast(torch.device("cpu"), precision):
            model.step(inputs, labels, cross_entropy, _RATE)

    return model, step


def _steps(network: str, kind: str) -> Callable[[], Any]:
    one_thread()
    inputs, labels = _batch(network, 1)
    if kind != "eager":
        keep_freed_memory()
        ours = _trainer(network, kind)[1]
        return lambda: ours(inputs, labels)
    module = build(network, input_shape=(3, 32, 32), classes=10, seed=0)
    optimiser = torch.optim.SGD(module.parameters(), lr=_RATE)

    def step() -> None:
        optimiser.zero_grad()
        cross_entropy(module(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def update_error(network: str) -> float:
    """Return ||g - g'|| / ||g|| for updates in float32 and bfloat16 from the same batches."""
    found = []
    for kind in ("fedcraft", "bfloat16"):
        model, step = _trainer(network, kind)
        start = model.vector.clone()
        torch.manual_seed(0)  # of dropout
        for seed in range(_STEPS):
            step(*_batch(network, seed))
        found.append(start - model.vector)
    whole, half = found
    return float((whole - half).norm() / whole.norm())


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
    """Return the medians and the median ratios to eager, after two steps to warm up."""
    command = [sys.executable, "-m", "benchmarks.steps", "--serve", network]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    servers: dict[str, Any] = {kind: subprocess.Popen([*command, kind], **pipes) for kind in KINDS}
    answers: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for _ in range(turns + 2):
        for kind, process in servers.items():
            process.stdin.write("step\n")
            process.stdin.flush()
            answers[kind].append(json.loads(process.stdout.readline()))
    for process in servers.values():
        process.communicate()
    seconds = {kind: [answer[0] for answer in found[2:]] for kind, found in answers.items()}
    return {
        "network": network,
        "seconds": {kind: median(found) for kind, found in seconds.items()},
        "faults": {kind: median(a[1] for a in found[2:]) for kind, found in answers.items()},
        "ratio": {kind: _ratio(seconds[kind], seconds["eager"]) for kind in KINDS[1:]},
        "update_error": update_error(network),
    }


def _ratio(seconds: list[float], eager: list[float]) -> float:
    return median(ours / theirs for ours, theirs in zip(seconds, eager, strict=True))


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
    for network in BATCHES:
        rows.append(compete(network, options.turns))
        print(json.dumps(rows[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
