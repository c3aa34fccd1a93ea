"""How close secure steps come to plain ones, round by round, and what the final models are worth.

    python -m benchmarks.secure_steps --json results/benchmarks/secure-steps.json
    python -m benchmarks.secure_steps --only accuracy --json results/benchmarks/secure-accuracy.json

The first part trains CRAFT in the plain way for 50 rounds, on digits and on FEMNIST, with both
constraints. In every round the secure step is computed too, from the same updates and the same
memory, for several sketch sizes and numbers of sums. It is the protocol's arithmetic without keys
and masks, which change no bit. ``error`` is max |U g - rho| over layers and clients as a share of
the mean target (``at_least``: what is missing of the target), ``cosine`` is between the two steps.
The shares show whom the exact step itself would reveal: the largest share of one client in the
squared coefficients of a layer, among the sums of the round. ``most_share`` says what the secure
step is compared with: at 1 the plain step; below 1 the step that the rule takes with exact Gram
matrices and one sum under the same limit, which is not the plain step where one client dominates.

The second part trains each method with three seeds, on digits for 50 rounds and on FEMNIST for the
500 of the paper's protocol (after 50 its seeds differ by .1): in the plain way, in the secure
way as close to it as the first part shows that it can be (two refinements, no limit), in the plain
way under the default limit (exact Gram matrices), and in the secure way with the default options.
"""

from __future__ import annotations

import argparse
import copy
import json
from dataclasses import replace
from itertools import product
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
LIMIT = Secure().most_share
LIMITED_SKETCH = 1024
ROUNDS = 50
LONG = {"digits": 50, "femnist": 500}  # of the second part
SEEDS = (77, 78, 79)
METHODS = ("craft", "craft-one-sided", "craft-auto")
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "secure": {"enabled": True, "refinements": 2, "most_share": 1.0, "sketch": 1024},
    "limited": {"enabled": True, "protocol": "exact", "refinements": 0},
    "secure and limited": {"enabled": True},  # the default options
}
# What a method needs on a data set, beside the defaults: twice the sketch where clients nearly
# depend on each other and all are held to equality, and FedAvg's best rate.
_SPECIAL: dict[tuple[str, str], dict[str, Any]] = {
    ("digits", "craft"): {"sketch": 2048},
    ("femnist", "craft-auto"): {"client_lr": 0.05},
}


class Compared(Craft):
    """CRAFT that also computes the secure step of every round and notes how it differs."""

    found: ClassVar[list[dict[str, Any]]] = []
    sketches: ClassVar[tuple[int, ...]] = ()

    def aggregate_cohort(self, cohort: Cohort) -> Step:
        before = self.memory
        step = super().aggregate_cohort(cohort)
        if isinstance(cohort, MemoryCohort):
            after, self.memory = self.memory, before
            exact = Secure(protocol="exact", refinements=0)
            limited, _ = self._secure_step(cohort, exact, self._round(cohort, exact))
            for sketch in self.sketches:
                options = Secure(sketch=sketch, most_share=1.0)
                round = self._round(cohort, options)
                self._compare(cohort, step, options, round)
                if sketch == LIMITED_SKETCH:
                    self._compare(cohort, limited, replace(options, most_share=LIMIT), round)
            self.memory = after
        return step

    def _round(self, cohort: MemoryCohort, options: Secure) -> ArithmeticRound:
        random = generator(1, "secure", len(self.found), options.sketch)
        return ArithmeticRound(
            cohort.updates, cohort.client_ids, cohort.layout.sizes, options,
            seed=random.bytes(32), random=random,
        )  # fmt: skip

    def _secure_step(
        self, cohort: MemoryCohort, options: Secure, round: ArithmeticRound
    ) -> tuple[Step, SecretProducts]:
        products = SecretProducts(round, options)
        fields = ("layout", "client_ids", "weights", "losses", "steps", "client_lr")
        facts = {name: getattr(cohort, name) for name in fields}
        rows = tuple(range(cohort.size))
        secret = SecretCohort(**facts, products=products, rows=rows)
        return aggregate_secretly(copy.copy(self), secret), products

    def _compare(
        self, cohort: MemoryCohort, wanted: Step, options: Secure, round: ArithmeticRound
    ) -> None:
        for sums in SUMS:
            allowed = replace(options, refinements=sums - 1)
            step, products = self._secure_step(cohort, allowed, round)
            shares = [0.0]  # of a round in which the last step suffices, so that no sum is needed
            for q in range(len(cohort.layout) if products.known else 0):
                sums_of_layer = [known.coefficients[q].numpy() for known in products.known]
                shares.append(largest_share(sums_of_layer))
            case = {"most_share": options.most_share, "sketch": options.sketch, "sums": sums}
            self.found.append(
                {**case, "share": max(shares), "spread": bool(products.spread)}
                | _difference(cohort, wanted, step, self.constraint)
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
    cases = [(1.0, sketch) for sketch in SKETCHES[dataset]] + [(LIMIT, LIMITED_SKETCH)]
    rows = []
    for (most_share, sketch), sums in product(cases, SUMS):
        case = {"most_share": most_share, "sketch": sketch, "sums": sums}
        these = [row for row in Compared.found if case.items() <= row.items()]
        error, share = (np.array([row[name] for row in these]) for name in ("error", "share"))
        rows.append(
            {
                "dataset": dataset,
                "constraint": constraint,
                **case,
                "rounds": len(these),
                "error_median": float(np.median(error)),
                "error_largest": float(error.max()),
                "cosine_least": min(row["cosine"] for row in these),
                "share_median": float(np.median(share)),
                "share_largest": float(share.max()),
                "rounds_above_limit": int((share > LIMIT).sum()),
                "rounds_with_spread_layers": sum(row["spread"] for row in these),
            }
        )
    return rows


def accuracy(dataset: str, method: str, seed: int, way: str) -> dict[str, Any]:
    """Train once and return the final accuracies."""
    special = dict(_SPECIAL.get((dataset, method), {}))
    sketch = special.pop("sketch", None)
    secure = WAYS[way] | ({"sketch": sketch} if sketch and way == "secure" else {})
    with TemporaryDirectory() as folder:
        done = fedcraft.run(
            method=method,
            dataset=dataset,
            rounds=LONG[dataset],
            seed=seed,
            executor="serial",
            evaluate_every=0,
            model_average="tail",  # last models differ by .03 between runs that round differently
            secure=secure,
            out=Path(folder) / "run",
            **special,
        )
        rows = [json.loads(line) for line in (done.directory / "metrics.jsonl").open()]
    spread = [row["secure"]["spread"] for row in rows if "secure" in row]
    return {
        "dataset": dataset,
        "method": method,
        "seed": seed,
        "way": way,
        "rounds": LONG[dataset],
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
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(chosen.json.read_text()) if chosen.json.exists() else []
    for dataset in chosen.datasets:
        if chosen.only == "exactness":
            for constraint in chosen.constraints:
                case = {"dataset": dataset, "constraint": constraint}
                rows = [row for row in rows if not case.items() <= row.items()]
                rows += exactness(dataset, constraint)
                _write(chosen.json, rows)
            continue
        for method, seed, way in product(chosen.methods, SEEDS, WAYS):
            case = {"dataset": dataset, "method": method, "seed": seed, "way": way}
            if not any(case.items() <= row.items() for row in rows):  # an interrupted command
                rows.append(accuracy(**case))
                _write(chosen.json, rows)


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    print(json.dumps(rows[-1]), flush=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
