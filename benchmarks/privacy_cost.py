"""What differential privacy costs: FedAvg on FEMNIST with central noise, at several budgets.

    python -m benchmarks.privacy_cost --json results/benchmarks/privacy-cost.json

50 of 1000 clients a round, 50 rounds, clip 0.5, delta 1e-5. "Without a limit" is clipped, with
equal weights, and has (nearly) no noise.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fedcraft
from fedcraft.privacy import noise_for

ROUNDS, COHORT, CLIENTS, CLIP = 50, 50, 1000, 0.5
BUDGETS = (math.inf, 8.0, 2.0)


def measure(budget: float, seed: int) -> dict[str, Any]:
    """Train once and return the budget that was spent and the final accuracy."""
    noise = 1e-6
    if math.isfinite(budget):
        noise = noise_for(
            budget, mode="central", rounds=ROUNDS, clients_per_round=COHORT, clients=CLIENTS
        )
    private = {"mode": "central", "clip": CLIP, "noise": noise}
    with TemporaryDirectory() as folder:
        run = fedcraft.run(
            method="fedavg",
            dataset="femnist",
            clients=CLIENTS,
            clients_per_round=COHORT,
            rounds=ROUNDS,
            seed=seed,
            executor="serial",
            evaluate_every=0,
            privacy=private,
            out=Path(folder) / "run",
        )
        row = json.loads((run.directory / "metrics.jsonl").read_text().splitlines()[-1])
    spent = row["privacy"]["epsilon"] if math.isfinite(budget) else None
    scores = {key: row["evaluation"][key] for key in ("mean", "worst10")}
    return {"budget": str(budget), "epsilon": spent, "noise": noise, "seed": seed, **scores}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[77])
    chosen = parser.parse_args()
    rows = []
    for seed in chosen.seeds:
        for budget in BUDGETS:
            rows.append(measure(budget, seed))
            print(json.dumps(rows[-1]), flush=True)
            chosen.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
