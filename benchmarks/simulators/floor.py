"""The floor: a training loop written by hand, without anything that a library would add.

FedAvg by ``loss.backward()`` and ``torch.optim.SGD`` over tensors in memory; with two processes,
clients split by size ahead of time, parameters and sums in shared memory. One thread each.

    python -m benchmarks.simulators.floor WORKLOAD PROCESSES
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.simulators.channel import Answer, Channel, serve
from benchmarks.simulators.networks import network
from benchmarks.simulators.workload import BATCH, CLIENT_LR, Workload

__all__ = ["Trainer", "main"]

_EVALUATION_BATCH = 1000


class Trainer:
    """One model and one optimiser, used for client after client."""

    def __init__(self, work: Workload) -> None:
        self.work, self.model = work, network(work.network)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=CLIENT_LR)

    def train(self, theta: Tensor, clients: list[int], total: int) -> Tensor:
        """Return the weighted sum of the clients' displacements."""
        update = torch.zeros_like(theta)
        for client in clients:
            rows = torch.from_numpy(np.array(self.work.rows(client)))
            self._one(theta, rows[torch.randperm(len(rows))])
            with torch.no_grad():
                moved = theta - parameters_to_vector(self.model.parameters())
            update.add_(moved, alpha=len(rows) / total)
        return update

    def _one(self, theta: Tensor, rows: Tensor) -> None:
        vector_to_parameters(theta.clone(), self.model.parameters())
        self.model.train()
        inputs, labels = self.work.inputs[rows], self.work.labels[rows]
        for first in range(0, len(rows), BATCH):
            self.optimizer.zero_grad()
            outputs = self.model(inputs[first : first + BATCH])
            cross_entropy(outputs, labels[first : first + BATCH]).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    @torch.no_grad()
    def correct(self, theta: Tensor, rows: Tensor) -> Tensor:
        """Return for each sample whether the model classifies it correctly."""
        vector_to_parameters(theta.clone(), self.model.parameters())
        self.model.eval()
        right = []
        for first in range(0, len(rows), _EVALUATION_BATCH):
            part = rows[first : first + _EVALUATION_BATCH]
            right.append(self.model(self.work.inputs[part]).argmax(1) == self.work.labels[part])
        return torch.cat(right)


class Floor:
    """The server, alone or with a second process."""

    def __init__(self, work: Workload, processes: int) -> None:
        self.work, self.trainer = work, Trainer(work)
        self.theta = parameters_to_vector(self.trainer.model.parameters()).detach().clone()
        self.sums = torch.zeros(processes, len(self.theta))
        self.rows = torch.from_numpy(np.array(work.arrays["test"]))
        self.right = torch.zeros(len(self.rows), dtype=torch.bool)
        for tensor in (self.theta, self.sums, self.right):
            tensor.share_memory_()  # type: ignore[no-untyped-call]
        self.round = 0
        self.helpers: list[Connection] = []
        context = multiprocessing.get_context("fork")
        for place in range(1, processes):
            ours, theirs = context.Pipe()
            context.Process(target=self._help, args=(place, theirs), daemon=True).start()
            self.helpers.append(ours)

    def train(self, rounds: int) -> Answer:
        """Train some rounds."""
        started, samples = time.perf_counter(), 0
        for _ in range(rounds):
            cohort, total = self.work.cohort(self.round), self.work.samples(self.round)
            shares = self._split(cohort)
            for place, helper in enumerate(self.helpers, start=1):
                helper.send((shares[place], total))
            self.sums[0] = self.trainer.train(self.theta, shares[0], total)
            for helper in self.helpers:
                helper.recv()
            self.theta.sub_(self.sums.sum(0))
            self.round, samples = self.round + 1, samples + total
        return {"seconds": time.perf_counter() - started, "samples": samples}

    def evaluate(self) -> Answer:
        """Return the mean accuracy over the clients."""
        started = time.perf_counter()
        for helper in self.helpers:
            helper.send(None)
        self._evaluate_part(0)
        for helper in self.helpers:
            helper.recv()
        ends = self.work.arrays["test_ends"]
        owners = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
        hits = np.bincount(owners, self.right.numpy(), len(ends) - 1)
        mean = float(np.mean(hits / np.diff(ends)))
        return {"seconds": time.perf_counter() - started, "accuracy": mean}

    def _evaluate_part(self, place: int) -> None:
        cuts = np.linspace(0, len(self.rows), len(self.sums) + 1).astype(int)
        part = slice(cuts[place], cuts[place + 1])
        self.right[part] = self.trainer.correct(self.theta, self.rows[part])

    def _split(self, cohort: list[int]) -> list[list[int]]:
        """Give the largest remaining client to the process with the least work."""
        shares: list[list[int]] = [[] for _ in self.sums]
        loads = [0] * len(shares)
        for client in sorted(cohort, key=lambda c: -len(self.work.rows(c))):
            least = loads.index(min(loads))
            shares[least].append(client)
            loads[least] += len(self.work.rows(client))
        return shares

    def _help(self, place: int, connection: Connection) -> None:
        torch.set_num_threads(1)
        while True:
            try:
                wish = connection.recv()
            except EOFError:
                return
            if wish is None:
                self._evaluate_part(place)
            else:
                self.sums[place] = self.trainer.train(self.theta, *wish)
            connection.send(None)


def main() -> None:
    """Serve as a contestant."""
    channel = Channel()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    floor = Floor(Workload.load(Path(sys.argv[1])), int(sys.argv[2]))
    serve(channel, floor.train, floor.evaluate)


if __name__ == "__main__":
    main()
