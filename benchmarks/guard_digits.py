"""Guards where every client has labels of its own and is there in every round.

    python -m benchmarks.guard_digits [--json FILE]

CRAFT with server rate 1 on digits, two labels per client, and the last client lies. Of six clients
it has the data of the first; ten all differ. Accuracy is that of all test samples. Takes a minute.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Generator, Tensor

from fedcraft.attacks import Attack, attack
from fedcraft.config.settings import Settings
from fedcraft.data import federate, load
from fedcraft.engine import run
from fedcraft.engine.callbacks import Callback
from fedcraft.methods import method
from fedcraft.metrics.scores import Scores
from fedcraft.models import build

GUARDS, SEEDS = ("none", "cosine", "answers"), (11, 12, 13, 14, 15)
LIES = {
    "flip": attack("sign_flip"),
    "hundredfold": attack("scaling"),
    "claim": attack("false_claims"),
    "modest claim": attack("false_claims", samples=3e4),  # a hundred times the truth
}
CASES = {6: ("nobody", *LIES), 10: ("nobody", "flip")}
DISTINCT = {6: 5, 10: 10}  # clients with data of their own
EVERY, ROUNDS = 15, 60


class LastClient(Attack):
    """Another attack, by the last client."""

    def __init__(self, lie: Attack) -> None:
        super().__init__(samples=lie.samples, loss=lie.loss)
        self.lie = lie

    def hostile(self, clients: int, seed: int) -> NDArray[np.int64]:
        return np.array([clients - 1])

    def updates(self, own: Tensor, honest: Tensor, draw: Generator) -> Tensor:
        return self.lie.updates(own, honest, draw)


class Accuracy(Callback):
    """The share of all test samples that the model classifies correctly, by round."""

    def __init__(self, distinct: int) -> None:
        self.distinct, self.found = distinct, dict[int, float]()

    def on_evaluate(self, round_number: int, scores: Mapping[str, Scores]) -> None:
        test, own = scores["test"], slice(self.distinct)
        self.found[round_number] = float(np.average(test.accuracy[own], weights=test.samples[own]))


def measure(clients: int, guard: str, liar: str, seed: int) -> Iterator[dict[str, Any]]:
    """Train once; yield the accuracy and the shares left out after 15 and 60 rounds."""
    accuracy = Accuracy(DISTINCT[clients])
    settings = Settings(
        rounds=ROUNDS, clients_per_round=clients, client_lr=0.1, server_lr=1.0, lr_decay=1.0,
        seed=seed, executor="serial", evaluate_every=EVERY, evaluate_train_loss=False,
    )  # fmt: skip
    data = federate(load("digits"), "shards", DISTINCT[clients], shards_per_client=2, seed=seed)
    model = build("mlp", input_shape=(64,), classes=10, seed=seed, hidden=[32])
    hostile = LastClient(LIES[liar]) if liar in LIES else None
    rule, data = method("craft", guard=guard), data.virtual(clients)
    done = run(rule, data, model, settings, callbacks=[accuracy], attack=hostile)
    case = {"clients": clients, "guard": guard, "liar": liar, "seed": seed}
    for row in (done.metrics[EVERY - 1], done.metrics[-1]):
        found = {"rounds": row["round"], "accuracy": accuracy.found[row["round"]]}
        yield case | found | {"left_out": row.get("left_out_shares", {})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    path = parser.parse_args().json
    rows: list[dict[str, Any]] = []
    for clients, lies in CASES.items():
        for guard, liar, seed in product(GUARDS, lies, SEEDS):
            rows += measure(clients, guard, liar, seed)
            print(json.dumps(rows[-1]), flush=True)
    if path:
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
