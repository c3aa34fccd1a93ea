"""What differential privacy costs: FedAvg on FEMNIST in every mode, at several budgets.

    python -m benchmarks.privacy_cost --json results/benchmarks/privacy-cost.json

50 of 1000 clients a round, 50 rounds, clip 0.5, delta 1e-5. "Without a limit" is clipped, with
equal weights, and has (nearly) no noise. The modes ``local`` and ``distributed`` account for the
rounds of the busiest client; the mode ``distributed`` has secure rounds of sums only.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fedcraft
from fedcraft.errors import NonFiniteError
from fedcraft.privacy import noise_for
from fedcraft.privacy.options import Mode
from fedcraft.runs import Run

ROUNDS, COHORT, CLIENTS, CLIP = 50, 50, 1000, 0.5
BUDGETS = (8.0, 2.0)
MODES: tuple[Mode, ...] = ("central", "distributed", "local")
_SUMS = {"enabled": True, "sketch": 0, "bound": 16.0}  # the largest coordinate with noise


def train(mode: Mode, noise: float, seed: int, folder: Path) -> Run:
    """Train once."""
    return fedcraft.run(
        method="fedavg",
        dataset="femnist",
        clients=CLIENTS,
        clients_per_round=COHORT,
        min_clients=COHORT,
        rounds=ROUNDS,
        seed=seed,
        executor="serial",
        evaluate_every=0,
        privacy={"mode": mode, "clip": CLIP, "noise": noise},
        secure=_SUMS if mode == "distributed" else {},
        out=folder / "run",
    )


def measure(mode: Mode, budget: float, seed: int, busiest: int = 1) -> tuple[dict[str, Any], int]:
    """Return what was spent and the final accuracy, and the rounds of the busiest client."""
    noise = 1e-6
    if math.isfinite(budget):
        given = {"rounds": ROUNDS, "clients_per_round": COHORT, "clients": CLIENTS}
        noise = noise_for(budget, mode=mode, participations=busiest, **given)
    case = {"mode": mode, "budget": str(budget), "noise": noise, "seed": seed}
    with TemporaryDirectory() as folder:
        try:
            records = train(mode, noise, seed, Path(folder)).records
        except NonFiniteError:  # noise that is larger than the model
            return {**case, "epsilon": None, "mean": None, "worst10": None}, 0
    rounds = Counter(client for record in records for client in record["clients"])
    spent = records[-1]["privacy"]["epsilon"] if math.isfinite(budget) else None
    scores = {key: records[-1]["evaluation"][key] for key in ("mean", "worst10")}
    return {**case, "epsilon": spent, **scores}, max(rounds.values())


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[77, 78, 79])
    chosen = parser.parse_args()
    rows = []
    for seed in chosen.seeds:
        free, busiest = measure("central", math.inf, seed)
        rows.append(free)
        for mode, budget in product(MODES, BUDGETS):
            rows.append(measure(mode, budget, seed, busiest)[0])
            print(json.dumps(rows[-1]), flush=True)
            chosen.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
