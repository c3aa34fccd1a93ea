"""One line changed: Flower's FedAvg against ``fedcraft.flower.Strategy()`` in small Flower apps.

    python -m benchmarks.drop_in [--only TEXT] [--rerun]

The apps are written in the style of Flower's own examples, with their numbers of clients and rounds
and their local training; the clients never learn which strategy the server runs. Messages go
through Flower's serialisation, in one process. The score is what FedAvg's users see: the accuracy
after the last round, averaged over the clients by their number of test samples. Runs that
results/benchmarks/drop-in.json holds are not repeated unless ``--rerun``. The table is printed.
CIFAR-10 is read from FEDCRAFT_DATA.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from flwr.serverapp.strategy import FedAvg

from benchmarks.flower_apps import (
    App,
    ImageApp,
    SklearnApp,
    SteadyImageApp,
    TabularApp,
    VectorApp,
    client_app,
)
from benchmarks.grids import InProcessGrid
from benchmarks.pages.markdown import table
from fedcraft.errors import FedcraftError
from fedcraft.flower import Strategy

RESULTS = Path("results/benchmarks/drop-in.json")
TOLERATED = -0.01
LEGEND = (
    "Accuracy after the app's last round, mean over the seeds; the gain of `Strategy()` over "
    "`FedAvg` with its standard error,\nbold where it is more than 0.01 below."
)
# Clients are evaluated after every round, as by FedAvg. That does not change what is trained.
STRATEGIES: dict[str, Callable[[], FedAvg | Strategy]] = {
    "FedAvg": FedAvg,
    "Strategy()": lambda: Strategy(evaluate_every=1),
    'Strategy("craft")': lambda: Strategy("craft", evaluate_every=1),
}
Record = dict[str, Any]
APPS: Sequence[type[App]] = (VectorApp, SklearnApp, TabularApp, ImageApp, SteadyImageApp)


def accuracies(app: App, strategy: FedAvg | Strategy) -> list[float]:
    """Return the accuracies that Flower reports, one per evaluation."""
    grid = InProcessGrid(client_app(app), app.clients)
    result = strategy.start(grid, app.record(app.initial()), num_rounds=app.rounds)
    reported = [metrics["accuracy"] for metrics in result.evaluate_metrics_clientapp.values()]
    return [float(value) for value in reported]  # type: ignore[arg-type]


def complete(records: list[Record], only: str, rerun: bool) -> list[Record]:
    """Run what is missing; the file is written after every run."""
    for kind in (kind for kind in APPS if only in kind.name):
        for name, strategy in STRATEGIES.items():
            for seed in kind.seeds:
                key = {"app": kind.name, "strategy": name, "seed": seed}
                others = [record for record in records if not key.items() <= record.items()]
                if len(others) < len(records) and not rerun:
                    continue
                started = perf_counter()
                found = accuracies(kind(seed), strategy())
                records = [*others, {**key, "accuracies": [round(a, 4) for a in found]}]
                lines = ",\n".join(json.dumps(record) for record in records)
                RESULTS.write_text(f"[\n{lines}\n]\n")
                print(f"{key}: {found[-1]:.3f}, {perf_counter() - started:.0f} s", flush=True)
    return records


def results_table(records: list[Record]) -> str:
    """One row per app: the mean accuracy over its seeds, and the gain with its standard error."""
    rows = []
    for kind in APPS:
        last = {name: _last(records, kind, name) for name in STRATEGIES}
        seeds = sorted(set.intersection(*(set(scores) for scores in last.values())))
        if not seeds:
            continue
        found = {name: [scores[seed] for seed in seeds] for name, scores in last.items()}
        gains = np.subtract(found["Strategy()"], found["FedAvg"])
        mark = "**" if gains.mean() < TOLERATED else ""
        error = gains.std(ddof=1) / np.sqrt(len(gains))
        shown = [f"{np.mean(values):.3f}" for values in found.values()]
        gain = f"{mark}{gains.mean():+.3f}{mark} ± {error:.3f}"
        rows.append([kind.about, kind.clients, kind.rounds, len(seeds), *shown, gain])
    heads = ["app", "clients", "rounds", "seeds", *(f"`{name}`" for name in STRATEGIES), "gain"]
    return f"{table(heads, rows)}\n\n{LEGEND}"


def _last(records: list[Record], kind: type[App], strategy: str) -> dict[int, float]:
    """The accuracy after the last round by seed."""
    key = {"app": kind.name, "strategy": strategy}
    return {r["seed"]: r["accuracies"][-1] for r in records if key.items() <= r.items()}


def main() -> None:
    """Run the apps and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="apps whose name contains this text")
    parser.add_argument("--rerun", action="store_true", help="repeat runs that are in the file")
    options = parser.parse_args()
    records: list[Record] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    try:
        records = complete(records, options.only, options.rerun)
    except FedcraftError as error:
        print(f"CIFAR-10 is missing, so its app did not run: {error}")
        records = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    print(results_table(records))


if __name__ == "__main__":
    main()
