"""What a secure round costs: bytes up and down per client, and CPU seconds, against other rounds.

    python -m benchmarks.secure_cost --parameters 200000 --clients 10 --json FILE

One round of CRAFT with keys, shares, sketches and masks, all clients in this process, nobody lost.
Bytes are those of every array in every message. Beside it:

* ``secagg``: FedAvg under Flower's SecAgg+. What its server computes is done here with Flower's own
  functions (adding 64-bit vectors, recovering a seed per client from as many shares, drawing and
  subtracting its mask); its upload is counted as 8 bytes per parameter.
* ``sums``: FedAvg by this protocol, ``secure.sketch = 0``.
* ``craft`` and ``fedavg``: plain rounds on updates in memory.

Seconds of the server are those outside the clients. So that large rounds fit, a client's update is
made when it is needed (a shifted copy of one random vector, plus a common part), and only the first
client adds the masks that it shares with others, in a trial whose time counts and whose result is
dropped: these masks cancel, and the server never computes one unless a client is lost.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

from fedcraft.aggregators import Aggregator, aggregator
from fedcraft.aggregators.inputs import RoundInput
from fedcraft.secure import Secure
from fedcraft.secure.agreement import needed_shares
from fedcraft.secure.client import scaled_rows
from fedcraft.secure.cohort import aggregate_secretly
from fedcraft.secure.products import SecretProducts
from fedcraft.secure.server import MaskedRound
from fedcraft.secure.simulation import LocalExchange, secret_cohort
from fedcraft.updates import Layout

_REQUEST = bytes(32)
_CLIP, _TARGET, _MODULUS = 8.0, 1 << 22, 1 << 32  # the defaults of Flower's SecAgg+
_IN_MEMORY = 4e9  # bytes of updates: the largest plain round that is run


class Updates:
    """Updates that agree in part, each made when it is needed."""

    def __init__(self, parameters: int) -> None:
        random = torch.Generator().manual_seed(0)
        self._own = torch.randn(parameters, generator=random)
        self._common = 0.3 * torch.randn(parameters, generator=random)

    def __call__(self, client: int) -> torch.Tensor:
        shifted: torch.Tensor = torch.roll(self._own, 1009 * client)
        return shifted.add_(self._common)


class CountingExchange(LocalExchange):
    """Counts bytes, and the seconds of all clients and of the first."""

    def __init__(self, updates: Updates, layout: Layout, ids: list[int], options: Secure) -> None:
        nothing = torch.empty(len(ids), 0)
        super().__init__(nothing, ids, options, request=_REQUEST, random=np.random.default_rng(0))
        self._make, self._sizes, self._options = updates, layout.sizes, options
        self.up = self.down = 0
        self.seconds = self.first = 0.0

    def ask(self, stage: Any, said: Any, private: Any) -> Iterator[Any]:
        """Ask, and count."""
        self.down += sum(_bytes(said) + _bytes(mine) for mine in private.values())
        for client, reply in super().ask(stage, said, private):
            self.up += _bytes(reply)
            yield client, reply

    def answer(self, stage: Any, client: Any, said: Any, mine: Any) -> Any:
        """Answer, and take the time; a client's update is only here while it is needed."""
        entered = time.process_time()
        memory = self.clients[client].memory
        if stage == "sketch":
            self._updates[client] = self._make(client)
        elif stage in ("dots", "sum"):
            bound = float(memory["bound"])
            rows, _ = scaled_rows(self._make(client).unsqueeze(0), self._sizes, bound)
            memory["units"] = rows.squeeze(0).numpy()
        if stage == "sum":
            self._try_with_all_masks(client, said)
            self.clients[client]._partners = lambda members: []  # type: ignore[method-assign]
        started = time.process_time()
        reply = super().answer(stage, client, said, mine)
        self.first += (time.process_time() - started) * (client == 0 and stage != "sum")
        self.clients[client].memory.pop("units", None)
        vars(self.clients[client]).pop("_partners", None)
        self._updates[client] = torch.empty(0)
        self.seconds += time.process_time() - entered
        return reply

    def _try_with_all_masks(self, client: int, said: Any) -> None:
        if client:
            return
        known = self.clients[client]
        before, started = dict(known.memory), time.process_time()
        known.sum(said)
        self.first += time.process_time() - started
        known.memory = before


def _bytes(message: Mapping[str, Any]) -> int:
    return sum(np.asarray(array).nbytes for array in message.values())


def secure_round(
    rule: Aggregator, updates: Updates, layout: Layout, clients: int, options: Secure
) -> tuple[CountingExchange, int, float]:
    """Run a round; return its exchange, the number of sums and the server's seconds."""
    ids = list(range(clients))
    exchange = CountingExchange(updates, layout, ids, options)
    started = time.process_time()
    round = MaskedRound(exchange, ids, layout.sizes, options, occasion=b"1", request=_REQUEST)
    products = SecretProducts(round, options)
    cohort = secret_cohort(products, round, layout, RoundInput(layers=layout), ids)
    step = aggregate_secretly(rule, cohort)
    if step.certificate is not None and not step.certificate.conflict_free:
        raise AssertionError("masks did not cancel")
    return exchange, products.spent, time.process_time() - started - exchange.seconds


def flower_seconds(parameters: int, clients: int, options: Secure) -> float:
    """The server's work in a round of Flower's SecAgg+ in which nobody is lost."""
    holders = min(options.neighbours, clients - 1) + 1
    least = needed_shares(holders, options.threshold)
    masked = [np.random.default_rng(0).integers(0, _MODULUS, parameters)]
    shares = create_shares(bytes(32), least, holders)[:least]
    started = time.process_time()
    total = masked
    for _ in range(clients - 1):
        total = parameters_addition(total, masked)
    total = parameters_mod(total, _MODULUS)
    for _ in range(clients):
        mask = pseudo_rand_gen(combine_shares(shares), _MODULUS, [(parameters,)])
        total = parameters_subtraction(total, mask)
    dequantize(parameters_mod(total, _MODULUS), _CLIP, _TARGET)
    return time.process_time() - started


def plain_seconds(rule: Aggregator, updates: Updates, layout: Layout, clients: int) -> float | None:
    """The seconds of a plain round; None if its updates do not fit into memory."""
    if 4 * layout.dimension * clients > _IN_MEMORY:
        return None
    rows = torch.stack([updates(client) for client in range(clients)])
    started = time.process_time()
    rule.aggregate(rows, layers=layout)
    return time.process_time() - started


def measure(parameters: int, clients: int, options: Secure) -> dict[str, Any]:
    """Run one round of every kind."""
    sizes = [parameters * 7 // 10, parameters * 2 // 10]
    layout = Layout.from_sizes([*sizes, parameters - sum(sizes)])
    given = Updates(parameters), layout, clients
    exchange, sums, seconds = secure_round(aggregator("craft"), *given, options)
    alone = Secure(sketch=0, bound=6.0)
    fedavg, _, sums_seconds = secure_round(aggregator("average"), *given, alone)
    return {
        "parameters": parameters,
        "clients": clients,
        "sketch": options.sketch,
        "sums": sums,
        "up": exchange.up / clients,
        "down": exchange.down / clients,  # without the model, which all modes send
        "up_plain": 4 * parameters,
        "up_secagg": 8 * parameters,
        "up_sums": fedavg.up / clients,
        "client_seconds": exchange.first,
        "server_seconds": seconds,
        "server_seconds_secagg": flower_seconds(parameters, clients, options),
        "server_seconds_sums": sums_seconds,
        "server_seconds_craft": plain_seconds(aggregator("craft"), *given),
        "server_seconds_fedavg": plain_seconds(aggregator("average", certify=False), *given),
    }


def main() -> None:
    """Measure, and replace the rows of a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, nargs="+", default=[200_000])
    parser.add_argument("--clients", type=int, nargs="+", default=[10])
    parser.add_argument("--sketch", type=int, default=256)
    parser.add_argument("--refinements", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--json", type=Path, required=True)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(chosen.json.read_text()) if chosen.json.exists() else []
    measure(1000, 4, Secure(most_share=1.0))  # imports
    for case in product(chosen.parameters, chosen.clients, chosen.refinements):
        parameters, clients, refinements = case
        options = Secure(sketch=chosen.sketch, refinements=refinements, most_share=1.0)
        row = measure(parameters, clients, options)
        same = ("parameters", "clients", "sums")
        rows = [old for old in rows if any(old[key] != row[key] for key in same)] + [row]
        rows.sort(key=lambda row: [row[key] for key in same])
        print(json.dumps(row), flush=True)
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
