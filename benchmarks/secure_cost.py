"""What a secure round costs: bytes up and down per client, and seconds, against plain rounds.

    python -m benchmarks.secure_cost --parameters 200000 --clients 10 --json FILE

All clients run in this process, with keys, shares and masks. Bytes are those of every array in
every message. ``secagg`` is FedAvg under Flower's SecAgg+, which sends 64-bit integers: its bytes
are counted from that, and it is not run. Seconds of the server are those outside the clients.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedcraft.aggregators import aggregator
from fedcraft.aggregators.inputs import RoundInput
from fedcraft.secure import Secure
from fedcraft.secure.cohort import aggregate_secretly
from fedcraft.secure.products import SecretProducts
from fedcraft.secure.server import MaskedRound
from fedcraft.secure.simulation import LocalExchange, secret_cohort
from fedcraft.updates import Layout

_MODEL = bytes(32)


class CountingExchange(LocalExchange):
    """Counts bytes and the clients' seconds."""

    up = down = 0
    seconds = 0.0

    def ask(self, stage: Any, said: Any, private: Any) -> Any:
        """Ask, and count."""
        replies = super().ask(stage, said, private)
        self.received.clear()  # vectors of all clients would not fit
        self.down += sum(_bytes(said) + _bytes(mine) for mine in private.values())
        self.up += sum(map(_bytes, replies.values()))
        return replies

    def answer(self, stage: Any, client: Any, said: Any, mine: Any) -> Any:
        """Answer, and take the time."""
        started = time.perf_counter()
        try:
            return super().answer(stage, client, said, mine)
        finally:
            self.seconds += time.perf_counter() - started


def _bytes(message: Mapping[str, Any]) -> int:
    return sum(np.asarray(array).nbytes for array in message.values())


def measure(parameters: int, clients: int, options: Secure) -> dict[str, Any]:
    """Run one secure and one plain round of CRAFT."""
    random = torch.Generator().manual_seed(0)
    sizes = [parameters * 7 // 10, parameters * 2 // 10]
    layout = Layout.from_sizes([*sizes, parameters - sum(sizes)])
    rows = torch.randn(clients, parameters, generator=random)
    rows += 0.3 * torch.randn(parameters, generator=random)
    ids = list(range(clients))
    exchange = CountingExchange(rows, ids, options, model=_MODEL, random=np.random.default_rng(0))
    started = time.perf_counter()
    round = MaskedRound(exchange, ids, layout.sizes, options, occasion=b"1", model=_MODEL)
    products = SecretProducts(round, options)
    cohort = secret_cohort(products, round, layout, RoundInput(layers=layout), ids)
    aggregate_secretly(aggregator("craft"), cohort)
    whole = time.perf_counter() - started
    started = time.perf_counter()
    aggregator("craft").aggregate(rows, layers=layout)
    plain = time.perf_counter() - started
    started = time.perf_counter()
    aggregator("average", certify=False).aggregate(rows, layers=layout)
    average = time.perf_counter() - started
    return {
        "parameters": parameters,
        "clients": clients,
        "sketch": options.sketch,
        "sums": products.spent,
        "up": exchange.up / clients,
        "down": exchange.down / clients,  # without the model, which all modes send
        "up_plain": 4 * parameters,
        "up_secagg": 8 * parameters,
        "client_seconds": exchange.seconds / clients,
        "server_seconds": whole - exchange.seconds,
        "server_seconds_craft": plain,
        "server_seconds_fedavg": average,
    }


def main() -> None:
    """Measure and append to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, nargs="+", default=[200_000])
    parser.add_argument("--clients", type=int, nargs="+", default=[10])
    parser.add_argument("--sketch", type=int, default=256)
    parser.add_argument("--refinements", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--json", type=Path, required=True)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(chosen.json.read_text()) if chosen.json.exists() else []
    for parameters in chosen.parameters:
        for clients in chosen.clients:
            for refinements in chosen.refinements:
                options = Secure(sketch=chosen.sketch, refinements=refinements, most_share=0.9)
                rows.append(measure(parameters, clients, options))
                print(json.dumps(rows[-1]), flush=True)
                chosen.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
