"""pfl 0.6.0 (pfl-research): FederatedAveraging on its SimulatedBackend, one or two processes.

Runs in a separate environment, as a plain script: PYTHON pfl_research.py WORKLOAD. Two processes
find each other by PFL_WORKER_ADDRESSES and PFL_WORKER_RANK, and get the same requests.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.simulators.channel import Answer, Channel, serve
from benchmarks.simulators.networks import network
from benchmarks.simulators.workload import BATCH, CLIENT_LR, Workload


class Judged(nn.Module):
    """The network with the two functions that pfl needs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, inputs: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
        """Return the mean loss of a batch."""
        self.train(not eval)
        return cross_entropy(self.inner(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, labels: Tensor, eval: bool = True) -> dict[str, Any]:
        """Return the accuracy of a batch."""
        from pfl.metrics import Weighted

        self.train(not eval)
        hits = int((self.inner(inputs).argmax(1) == labels).sum())
        return {"accuracy": Weighted(hits, len(labels))}


class Simulation:
    """pfl's loop, stepped by hand: gather results from a cohort, apply the update."""

    def __init__(self, work: Workload) -> None:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByDatapoints
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.pytorch import PyTorchTensorDataset
        from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel

        self.work, self.round = work, 0
        self.dataset_type = PyTorchTensorDataset
        module = Judged(network(work.network))
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        self.model = PyTorchModel(module, torch.optim.SGD, optimizer)
        order = itertools.chain.from_iterable(work.cohort(r) for r in itertools.count())
        sizes = {client: len(work.rows(client)) for client in range(work.clients)}
        clients = FederatedDataset(self._client, lambda: next(order), sizes)
        self.backend = SimulatedBackend(clients, clients, [WeightByDatapoints()])
        self.algorithm = FederatedAveraging()
        self.params = NNAlgorithmParams(
            central_num_iterations=10**9,
            evaluation_frequency=10**9,
            train_cohort_size=len(work.cohort(0)),
            val_cohort_size=0,
        )
        self.train_params = NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=CLIENT_LR, local_batch_size=BATCH
        )
        self.eval_params = NNEvalHyperParams(local_batch_size=1000)

    def _client(self, client: int) -> Any:
        rows = torch.from_numpy(np.array(self.work.rows(client)))
        rows = rows[torch.randperm(len(rows))]
        tensors = (self.work.inputs[rows], self.work.labels[rows])
        return self.dataset_type(tensors, user_id=str(client), eval_kwargs={"eval": True})

    def train(self, rounds: int) -> Answer:
        """Run some central iterations."""
        started, samples = time.perf_counter(), 0
        for _ in range(rounds):
            samples += self.work.samples(self.round)
            self._iterate()
            self.round += 1
        return {"seconds": time.perf_counter() - started, "samples": samples}

    def _iterate(self) -> None:
        contexts, self.model, _ = self.algorithm.get_next_central_contexts(
            self.model, self.round + 1, self.params, self.train_params, self.eval_params
        )
        for context in contexts:
            statistics, metrics = self.backend.gather_results(
                model=self.model, training_algorithm=self.algorithm, central_context=context
            )
            if statistics is not None:
                self.model, _ = self.algorithm.process_aggregated_statistics(
                    context, metrics, self.model, statistics
                )

    def evaluate(self) -> Answer:
        """Evaluate all test samples at once: pfl's central evaluation, without clients."""
        rows = torch.from_numpy(np.array(self.work.arrays["test"]))
        started = time.perf_counter()
        tensors = (self.work.inputs[rows], self.work.labels[rows])
        whole = self.dataset_type(tensors, eval_kwargs={"eval": True})
        found = self.model.evaluate(whole, eval_params=self.eval_params)
        accuracy = float(next(iter(dict(found).values())).overall_value)
        return {"seconds": time.perf_counter() - started, "accuracy": accuracy}


def main() -> None:
    """Serve as a contestant."""
    channel = Channel()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  pfl draws its seeds here, and two processes must agree
    simulation = Simulation(Workload.load(Path(sys.argv[1])))
    serve(channel, simulation.train, simulation.evaluate)


if __name__ == "__main__":
    main()
