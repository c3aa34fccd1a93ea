"""fedcraft: ``engine.run`` as a user calls it, paused between turns by a callback.

python -m benchmarks.simulators.ours WORKLOAD DATA EXECUTOR WORKERS METHOD [CLIENTS]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.simulators.channel import Channel
from benchmarks.simulators.data import federation_of
from benchmarks.simulators.workload import BATCH, CLIENT_LR, Workload
from fedcraft.engine import Callback, RunInfo, Settings, run
from fedcraft.engine.sampling import SampledClients
from fedcraft.methods import method
from fedcraft.models import build

__all__ = ["main"]

_EVER = 10**9


class Turns(Callback):
    """Runs the requested number of rounds, then waits for the next request."""

    def __init__(self, channel: Channel, work: Workload) -> None:
        self._channel, self._work = channel, work
        self._left = self._samples = 0
        self._started = 0.0
        self.evaluating = False

    def on_start(self, info: RunInfo) -> None:
        self._channel.send({"ready": True})
        self._next_turn()

    def on_round(self, record: Mapping[str, Any]) -> None:
        if self.evaluating:
            seconds, mean = record["seconds"]["evaluate"], record["evaluation"]["mean"]
            self._channel.send({"seconds": seconds, "accuracy": mean})
            self._next_turn()
            return
        self._left -= 1
        self._samples += self._work.samples(record["round"] - 1)
        if self._left == 0:
            seconds = time.perf_counter() - self._started
            self._channel.send({"seconds": seconds, "samples": self._samples})
            self._next_turn()

    def _next_turn(self) -> None:
        wish = self._channel.receive()
        if wish is None:
            raise SystemExit
        self.evaluating = wish["do"] == "evaluate"  # one more round, and its evaluation
        self._left, self._samples = wish.get("rounds", 0), 0
        self._started = time.perf_counter()


def main() -> None:
    """Serve as a contestant."""
    channel = Channel()
    folder, root, executor, workers, name = sys.argv[1:6]
    work = Workload.load(Path(folder))
    federation = federation_of(work.name, root or None)
    if len(sys.argv) > 6:
        federation = federation.virtual(int(sys.argv[6]))
    turns = Turns(channel, work)

    class OnDemand(Settings):
        """Evaluate when asked to."""

        def evaluates(self, round_number: int) -> bool:
            return turns.evaluating

    settings = OnDemand(
        rounds=_EVER,
        clients_per_round=len(work.cohort(0)),
        client_lr=CLIENT_LR,
        server_lr=method(name).server_lr,
        lr_decay=1.0,
        batch_size=BATCH,
        evaluate_train_loss=False,
        executor=executor,  # type: ignore[arg-type]
        workers=int(workers),
    )
    shape = federation.dataset.input_shape
    model = build(work.network, input_shape=shape, classes=federation.dataset.classes, seed=0)
    virtual = len(federation) // work.clients

    def sampler(settings: Settings, clients: int, round_index: int) -> SampledClients:
        """The clients of a round, each replaced by a random virtual client with the same data."""
        chosen = np.asarray(work.cohort(round_index))
        copies = np.random.default_rng(round_index).integers(0, virtual, len(chosen))
        return SampledClients(np.sort(chosen + copies * work.clients), np.empty(0, np.int64))

    run(method(name), federation, model, settings, callbacks=[turns], sampler=sampler)


if __name__ == "__main__":
    main()
