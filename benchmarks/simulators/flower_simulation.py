"""Flower's own simulation (Ray): FedAvg with a NumPyClient per partition, one core per client.

A simulation cannot pause between turns, so every turn is a new simulation; the strategy times the
rounds after the first.

    python -m benchmarks.simulators.flower_simulation WORKLOAD CORES
"""

from __future__ import annotations

import os
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn.utils import parameters_to_vector

from benchmarks.simulators.channel import Answer, Channel, serve
from benchmarks.simulators.floor import Trainer
from benchmarks.simulators.workload import Workload

_WORKLOAD = "FEDCRAFT_BENCH_WORKLOAD"  # how Ray's workers learn of it


@lru_cache(maxsize=1)
def _trainer() -> Trainer:
    torch.set_num_threads(1)
    return Trainer(Workload.load(Path(os.environ[_WORKLOAD])))


class Client(NumPyClient):
    """The floor's own training and evaluation, behind Flower's interface."""

    def __init__(self, client: int) -> None:
        self.client = client

    def fit(self, parameters: Any, config: Any) -> tuple[list[Any], int, dict[str, Any]]:
        """Train one client."""
        trainer, theta = _trainer(), torch.from_numpy(parameters[0].copy())
        size = len(trainer.work.rows(self.client))
        moved = trainer.train(theta, [self.client], size)
        return [(theta - moved).numpy()], size, {}

    def evaluate(self, parameters: Any, config: Any) -> tuple[float, int, dict[str, Any]]:
        """Test one client."""
        trainer, theta = _trainer(), torch.from_numpy(parameters[0].copy())
        rows = torch.from_numpy(np.array(trainer.work.rows(self.client, "test")))
        hits = float(trainer.correct(theta, rows).float().mean())
        return 0.0, len(rows), {"accuracy": hits}


def _client(context: Context) -> Any:
    return Client(int(context.node_config["partition-id"])).to_client()


class Watched(FedAvg):
    """FedAvg that records the end of each round and the samples trained on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ends: list[float] = []
        self.samples: list[int] = []
        self.scores: list[tuple[float, float]] = []

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Aggregate, and record the time."""
        done = super().aggregate_fit(server_round, results, failures)
        self.ends.append(time.perf_counter())
        self.samples.append(sum(result.num_examples for _, result in results))
        return done

    def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
        """Average the clients' accuracies, and record the time."""
        mean = float(np.mean([result.metrics["accuracy"] for _, result in results]))
        self.scores.append((time.perf_counter() - self.ends[-1], mean))
        return None, {}


def _simulate(rounds: int, cores: int, evaluate: float) -> Watched:
    trainer = _trainer()
    clients, active = trainer.work.clients, len(trainer.work.cohort(0))
    start = parameters_to_vector(trainer.model.parameters()).detach().numpy()
    strategy = Watched(
        fraction_fit=active / clients,
        min_fit_clients=active,
        min_available_clients=clients,
        fraction_evaluate=evaluate,
        min_evaluate_clients=1,
        initial_parameters=ndarrays_to_parameters([start]),
    )
    config = ServerConfig(num_rounds=rounds)
    parts = ServerAppComponents(strategy=strategy, config=config)
    run_simulation(
        ServerApp(server_fn=lambda _: parts),
        ClientApp(client_fn=_client),
        num_supernodes=clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
            # A separate cluster, in case another one runs on this machine.
            "init_args": {"address": "local", "num_cpus": cores, "logging_level": "error"},
        },
    )
    return strategy


def main() -> None:
    """Serve as a contestant."""
    channel, cores = Channel(), int(sys.argv[2])
    os.environ[_WORKLOAD] = sys.argv[1]
    torch.manual_seed(0)

    def train(rounds: int) -> Answer:
        seen = _simulate(rounds + 1, cores, 0.0)
        return {"seconds": seen.ends[-1] - seen.ends[0], "samples": sum(seen.samples[1:])}

    def evaluate() -> Answer:
        seconds, accuracy = _simulate(1, cores, 1.0).scores[-1]
        return {"seconds": seconds, "accuracy": accuracy}

    try:
        serve(channel, train, evaluate)
    finally:
        os._exit(0)  # threads of a failed simulation would keep the process


if __name__ == "__main__":
    # Imported under its own name, because Ray's workers import the client from there.
    from benchmarks.simulators import flower_simulation

    flower_simulation.main()
