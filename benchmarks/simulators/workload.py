"""A workload on disk: samples, clients, and the clients of each round, shared by all contestants.

It needs only numpy and torch, because pfl runs in a separate environment.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["BATCH", "CLIENT_LR", "Workload"]

BATCH = 50
CLIENT_LR = 0.05
_ARRAYS = ("inputs", "labels", "train", "train_ends", "test", "test_ends", "schedule")

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Workload:
    """The arrays of a workload, memory-mapped so that all processes share one copy.

    ``inputs`` are float32 and normalised; client i trains on ``train[ends[i]:ends[i + 1]]``;
    row r of ``schedule`` holds the clients of round r (and again after its last row).
    """

    name: str
    network: str
    arrays: dict[str, NDArray[Any]]

    @classmethod
    def load(cls, folder: Path) -> Workload:
        """Open a workload that :meth:`save` wrote."""
        about = json.loads((folder / "about.json").read_text())
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
        return cls(about["name"], about["network"], arrays)

    def save(self, folder: Path) -> None:
        """Write one .npy file per array."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", self.arrays[name])
        about = {"name": self.name, "network": self.network}
        (folder / "about.json").write_text(json.dumps(about))

    @cached_property
    def inputs(self) -> Tensor:
        """All samples, ready for the network."""
        return _tensor(self.arrays["inputs"])

    @cached_property
    def labels(self) -> Tensor:
        """All labels."""
        return _tensor(self.arrays["labels"])

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.arrays["train_ends"]) - 1

    def rows(self, client: int, split: str = "train") -> Integers:
        """Return the sample numbers of one client."""
        ends = self.arrays[f"{split}_ends"]
        rows: Integers = self.arrays[split][ends[client] : ends[client + 1]]
        return rows

    def cohort(self, round_index: int) -> list[int]:
        """Return the clients of a round."""
        schedule = self.arrays["schedule"]
        cohort: list[int] = schedule[round_index % len(schedule)].tolist()
        return cohort

    def samples(self, round_index: int) -> int:
        """Return how many samples a round trains on."""
        return sum(len(self.rows(client)) for client in self.cohort(round_index))


def _tensor(array: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about a read-only map; nothing writes here
        return torch.from_numpy(array)
