"""The two workloads, as federations for fedcraft and as arrays for the other contestants."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from benchmarks.simulators.workload import Workload
from fedcraft.data import Federation, federate, load
from fedcraft.seeds import generator

__all__ = ["federation_of", "prepare"]

_SEED = 77
_SCHEDULED_ROUNDS = 1000
_NETWORKS = {"femnist": "mlp", "cifar10": "cnn"}


def federation_of(name: str, root: str | None) -> Federation:
    """Return FEMNIST's 1,000 writers, or CIFAR-10 over 100 Dirichlet(0.1) clients.

    CIFAR's random crops are left out: the contestants are to do the same arithmetic, and not all
    of them have crops of their own.
    """
    if name == "femnist":
        writers = load(name, root=root, clients=1000, max_samples=500, seed=_SEED)
        return federate(writers, "natural", seed=_SEED)
    images = dataclasses.replace(load(name, root=root), augmentation="none")
    return federate(images, "dirichlet", clients=100, alpha=0.1, min_size=20, seed=_SEED)


def prepare(name: str, root: str | None, folder: Path, active: int = 10) -> Workload:
    """Write a workload's arrays: normalised float32 samples, clients, cohorts."""
    federation = federation_of(name, root)
    inputs, labels = federation.tensors(ahead_mb=4096).gather(np.arange(len(federation.dataset)))
    schedule = [
        np.sort(generator(_SEED, "schedule", r).choice(len(federation), active, replace=False))
        for r in range(_SCHEDULED_ROUNDS)
    ]
    arrays = {
        "inputs": inputs.numpy(),
        "labels": labels.numpy(),
        "train": federation.train.indices,
        "train_ends": federation.train.pointers,
        "test": federation.test.indices,
        "test_ends": federation.test.pointers,
        "schedule": np.stack(schedule),
    }
    work = Workload(name, _NETWORKS[name], arrays)
    work.save(folder)
    return work
