"""How far real rounds stay from CRAFT's bound on the step.

    python -m benchmarks.step_bound [--only TEXT]

The default ``clip = "auto"`` acts where a singular value of a layer's unit updates lies below 1/30.
Every setting trains some rounds and records the smallest singular value over all rounds and layers,
and the number of rounds in which the bound acted anywhere, in results/benchmarks/step-bound.json.
FEMNIST and CIFAR-10 are read from FEDCRAFT_DATA.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import fedcraft
from benchmarks.pages.markdown import table
from fedcraft.aggregators.base import Outcome
from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.craft import Craft
from fedcraft.linalg import UnitRows
from fedcraft.methods import Part

RESULTS = Path("results/benchmarks/step-bound.json")
SEED = 77
METHODS = ("craft", "craft-auto")
SETTINGS: dict[str, dict[str, Any]] = {
    "digits, 5 of 50 clients": {
        "dataset": "digits",
        "clients": 50,
        "clients_per_round": 5,
        "rounds": 100,
    },
    "FEMNIST & MLP, 10 of 1,000": {"dataset": "femnist", "rounds": 200},
    "FEMNIST & MLP, 100 of 1,000": {"dataset": "femnist", "clients_per_round": 100, "rounds": 40},
    "CIFAR-10 & CNN, 10 of 100": {"dataset": "cifar10", "model": "cnn", "rounds": 30},
    "CIFAR-10 & ResNet-20, 100 of 1,000": {
        "dataset": "cifar10",
        "model": "resnet20",
        "clients": 1000,
        "clients_per_round": 100,
        "rounds": 5,
    },
}


class Watched(Craft):
    """CRAFT, unchanged, that records how close each round came to the bound."""

    smallest: float
    bounded: int

    def direction(self, cohort: Cohort) -> Outcome:
        kernel = UnitRows.of(cohort.grams, self.tau, self.eps).kernel
        values = torch.linalg.eigvalsh(kernel).clamp(min=0).sqrt()
        outcome = super().direction(cohort)
        Watched.smallest = min(Watched.smallest, float(values.min()))
        Watched.bounded += bool(outcome.projection and outcome.projection.bounded)
        return outcome


def measure(keys: dict[str, Any], name: str) -> dict[str, float]:
    """Train one setting with a watched rule."""
    Watched.smallest, Watched.bounded = 1.0, 0
    rule = fedcraft.method(name).aggregator
    watched = fedcraft.method(name, aggregator=Part(Watched, rule.params))
    with TemporaryDirectory() as folder:
        fedcraft.run(
            keys,
            method=watched,
            seed=SEED,
            evaluate_every=keys["rounds"],
            evaluate_train_loss=False,
            executor="serial",  # the rule's records are in this process
            out=Path(folder) / "run",
        )
    return {"smallest": Watched.smallest, "bounded": Watched.bounded, "rounds": keys["rounds"]}


def results_table(records: dict[str, dict[str, dict[str, float]]]) -> str:
    rows = [
        [setting, f"{found['rounds']:g}", name, f"{found['smallest']:.3f}", f"{found['bounded']:g}"]
        for setting, methods in records.items()
        for name, found in methods.items()
    ]
    return table(["setting", "rounds", "method", "smallest σ", "rounds bounded"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="settings whose name contains this text")
    options = parser.parse_args()
    records = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for setting, keys in SETTINGS.items():
        if options.only.casefold() not in setting.casefold():
            continue
        records[setting] = {name: measure(keys, name) for name in METHODS}
        RESULTS.write_text(json.dumps(records, indent=1) + "\n")
        print(setting, records[setting], flush=True)
    print(results_table(records))


if __name__ == "__main__":
    main()
