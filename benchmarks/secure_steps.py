"""How close secure steps come to plain ones, round by round, and what the final models are worth.

    python -m benchmarks.secure_steps --json results/benchmarks/secure-steps.json
    python -m benchmarks.secure_steps --only accuracy --json results/benchmarks/secure-accuracy.json

The first part trains CRAFT in the plain way for 50 rounds, on digits and on FEMNIST, with both
constraints. In every round the secure step is computed too, from the same updates and the same
memory, for several sketch sizes and numbers of sums. It is the protocol's arithmetic without keys
and masks, which change no bit. ``error`` is max |U g - rho| over layers and clients as a share of
the mean target (``at_least``: what is missing of the target), ``cosine`` is between the two steps.
The shares show whom the exact step itself would reveal: the largest share of one client in the
squared coefficients of a layer, among the sums of the round.

The second part trains each method with three seeds in the plain and in the secure way.
"""

from __future__ import annotations

import argparse
import copy
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import torch

import fedcraft
from fedcraft.aggregators.base import Step
from fedcraft.aggregators.cohort import Cohort, MemoryCohort
from fedcraft.aggregators.craft import Craft
from fedcraft.secure import Secure
from fedcraft.secure.agreement import largest_share
from fedcraft.secure.cohort import SecretCohort, aggregate_secretly
from fedcraft.secure.products import SecretProducts
from fedcraft.secure.simulation import ArithmeticRound
from fedcraft.seeds import generator

SKETCHES = {"digits": (64, 256, 1024, 2048), "femnist": (64, 256, 1024)}
SUMS = (1, 2, 3)
ROUNDS = 50
SEEDS = (77, 78, 79)
METHODS = ("craft", "craft-one-sided", "craft-auto")


class Compared(Craft):
    """CRAFT that also computes the secure step of every round and notes how it differs."""

    found: ClassVar[list[dict[str, Any]]] = []
    sketches: ClassVar[tuple[int, ...]] = ()

    def aggregate_cohort(self, cohort: Cohort) -> Step:
        before = self.memory
        step = super().aggregate_cohort(cohort)
        if isinstance(cohort, MemoryCohort):
            after, self.memory = self.memory, before
            for sketch in self.sketches:
                self._compare(cohort, step, sketch)
            self.memory = after
        return step

    def _compare(self, cohort: MemoryCohort, plain: Step, sketch: int) -> None:
        # The exact step, whatever it reveals: shares are reported.
        options = Secure(sketch=sketch, most_share=1.0)
        random = generator(1, "secure", len(self.found), sketch)
        round = ArithmeticRound(
            cohort.updates, cohort.client_ids, cohort.layout.sizes, options,
            seed=random.bytes(32), random=random,
        )  # fmt: skip
        for sums in SUMS:
            products = SecretProducts(round, replace(options, refinements=sums - 1))
            fields = ("layout", "client_ids", "weights", "losses", "steps", "client_lr")
            facts = {name: getattr(cohort, name) for name in fields}
            rows = tuple(range(cohort.size))
            rule = copy.copy(self)
            step = aggregate_secretly(rule, SecretCohort(**facts, products=products, rows=rows))
            shares = [0.0]  # of a round in which the last step suffices, so that no sum is needed
            for q in range(len(cohort.layout) if products.known else 0):
                sums_of_layer = [known.coefficients[q].numpy() for known in products.known]
                shares.append(largest_share(sums_of_layer))
            self.found.append(
                {"sketch": sketch, "sums": sums, "share": max(shares)}
                | _difference(cohort, plain, step, self.constraint)
            )


def _difference(cohort: MemoryCohort, plain: Step, secure: Step, constraint: str) -> dict[str, Any]:
    norms = cohort.square_norms.sqrt()
    got = cohort.dots(secure.direction) / norms.clamp(min=1e-30)
    wanted = cohort.dots(plain.direction) / norms.clamp(min=1e-30)
    gap = got - wanted if constraint == "equal" else (cohort.weights - got).clamp(min=0)
    if constraint == "at_least":  # demands that no step meets are not the sketch's fault
        gap = gap - (cohort.weights - wanted).clamp(min=0)
    active = norms >= 1e-6
    pair = plain.direction.to(torch.float64), secure.direction.to(torch.float64)
    cosine = float(torch.nn.functional.cosine_similarity(*pair, dim=0))
    return {"error": float(gap[active].abs().max() * cohort.size), "cosine": cosine}


def exactness(dataset: str, constraint: str) -> list[dict[str, Any]]:
    """Return one row per sketch size and number of sums."""
    Compared.found, Compared.sketches = [], SKETCHES[dataset]
    with TemporaryDirectory() as folder:
        fedcraft.run(
            method="craft",
            aggregator=Compared(constraint=constraint),  # type: ignore[arg-type]
            dataset=dataset,
            rounds=ROUNDS,
            executor="serial",
            evaluate_every=0,
            out=Path(folder) / "run",
        )
    rows = []
    for sketch in SKETCHES[dataset]:
        for sums in SUMS:
            these = [r for r in Compared.found if (r["sketch"], r["sums"]) == (sketch, sums)]
            error = np.array([row["error"] for row in these])
            share = np.array([row["share"] for row in these])
            rows.append(
                {
                    "dataset": dataset,
                    "constraint": constraint,
                    "sketch": sketch,
                    "sums": sums,
                    "rounds": len(these),
                    "error_median": float(np.median(error)),
                    "error_largest": float(error.max()),
                    "cosine_least": min(row["cosine"] for row in these),
                    "share_median": float(np.median(share)),
                    "share_largest": float(share.max()),
                    "rounds_above_0.75": int((share > 0.75).sum()),
                }
            )
    return rows


def accuracy(dataset: str, method: str, seed: int, secure: dict[str, Any]) -> dict[str, Any]:
    """Train once and return the final accuracies."""
    with TemporaryDirectory() as folder:
        done = fedcraft.run(
            method=method,
            dataset=dataset,
            rounds=ROUNDS,
            seed=seed,
            executor="serial",
            evaluate_every=0,
            secure=secure,
            out=Path(folder) / "run",
        )
        rows = [json.loads(line) for line in (done.directory / "metrics.jsonl").open()]
    spread = [row["secure"]["spread"] for row in rows if "secure" in row]
    return {
        "dataset": dataset,
        "method": method,
        "seed": seed,
        "secure": secure,
        **{key: rows[-1]["evaluation"][key] for key in ("mean", "worst10", "std")},
        "conflicts": float(np.mean([row["conflicts"]["after"] for row in rows])),
        "rounds_with_spread_layers": sum(bool(layers) for layers in spread),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("exactness", "accuracy"), default="exactness")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--datasets", nargs="*", default=list(SKETCHES))
    parser.add_argument("--constraints", nargs="*", default=["equal", "at_least"])
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for dataset in chosen.datasets:
        if chosen.only == "exactness":
            for constraint in chosen.constraints:
                rows += exactness(dataset, constraint)
                _write(chosen.json, rows)
            continue
        for method in METHODS:
            for seed in SEEDS:
                for secure in ({}, {"enabled": True, "sketch": 1024, "refinements": 1}):
                    rows.append(accuracy(dataset, method, seed, secure))
                    _write(chosen.json, rows)


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    print(json.dumps(rows[-1]), flush=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
