"""Accuracy over virtual time: 10,000 clients that come and go, with and without a buffer.

    python -m benchmarks.virtual_clock [--seeds 77 78 79] [--until 200] [--json FILE]

FEMNIST (1,000 writers) is dealt to 10,000 clients by a Dirichlet draw over labels, about 18 samples
to train on each. Devices differ tenfold in speed; clients are four times likelier to be there at
their peak, which follows from their most frequent label, than half a day later; a tenth of the
updates is lost. 65 clients train at once for every method: synchronous rounds take the first 50, a
buffer steps after every 10. Every method has two pairs of rates, compared on the first seed by the
mean accuracy at the end; the better one runs on the other seeds too. Runs that FILE has are kept.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.pages.markdown import table as markdown_table
from fedcraft.data import Federation, federate, load
from fedcraft.engine import Settings, run
from fedcraft.methods import method
from fedcraft.models import build

CLIENTS, WRITERS, AT_ONCE = 10_000, 1_000, 65
CLOCK: dict[str, Any] = {
    "concurrency": AT_ONCE,
    "speed_spread": 10.0,
    "availability_swing": 4.0,
    "label_correlation": 1.0,
    "day": 50.0,
}
TAKEN = {"synchronous": 50, "buffered": 10}
EVALUATE_EVERY = {"synchronous": 15, "buffered": 160}  # about the same virtual time
FEDAVG_RATES = ((0.005, 1.0), (0.01, 1.0))
RATES = {"craft": ((0.01, 0.1), (0.01, 0.3))}  # its server rate alone sets the length of a step


Runs = list[dict[str, Any]]


class Case(NamedTuple):
    """A method, and whether its server waits or buffers."""

    method: str
    mode: str


CASES = (
    Case("fedavg", "synchronous"),
    Case("craft", "synchronous"),
    Case("craft-auto", "synchronous"),
    Case("fedbuff", "buffered"),
    Case("craft", "buffered"),
    Case("craft-auto", "buffered"),
)


def federation(seed: int) -> Federation:
    """Deal the writers' samples to the clients."""
    data = load("femnist", clients=WRITERS, seed=seed)
    return federate(data, "dirichlet", CLIENTS, alpha=0.3, min_size=10, seed=seed)


def measure(
    case: Case, rates: tuple[float, float], seed: int, until: float, clients: Federation
) -> dict[str, Any]:
    """Train once; return the mean accuracy over clients by virtual time."""
    settings = Settings(
        rounds=100_000,  # it ends by the clock
        clients_per_round=TAKEN[case.mode],
        client_lr=rates[0],
        server_lr=rates[1],
        lr_decay=1.0,
        local_epochs=5,
        batch_size=20,
        dropout=0.1,
        seed=seed,
        clock={"mode": case.mode, "until": until, **CLOCK},
        evaluate_every=EVALUATE_EVERY[case.mode],
        evaluate_train_loss=False,
        diagnostics_every=0,
        nonfinite="stop",
        executor="vectorized",
        workers=1,
    )
    data, started = clients.dataset, time.process_time()
    model = build(
        "mlp", input_shape=data.input_shape, classes=data.classes, hidden=(64,), seed=seed
    )
    result = run(method(case.method), clients, model, settings)
    stale = [age for row in result.metrics for age in row.get("staleness", ())]
    return {
        **case._asdict(),
        "seed": seed,
        "client_lr": rates[0],
        "server_lr": rates[1],
        "rounds": result.round,
        "updates": sum(len(row["clients"]) for row in result.metrics),
        "mean_staleness": round(sum(stale) / len(stale), 2) if stale else 0.0,
        "cpu_seconds": round(time.process_time() - started, 1),
        "curve": [
            [round(row["virtual_time"], 2), round(row["evaluation"]["mean"], 4)]
            for row in result.metrics
            if "evaluation" in row
        ],
    }


def measure_all(seeds: list[int], until: float, known: Runs) -> Iterator[dict[str, Any]]:
    """Compare the rates of every case on the first seed; run the better ones on the others.

    Runs that are ``known`` are not repeated.
    """
    runs: Runs = []
    for seed in seeds:
        clients = cache(partial(federation, seed))
        for case in CASES:
            pairs = RATES.get(case.method, FEDAVG_RATES)
            for pair in pairs if seed == seeds[0] else [best_rates(runs, case)]:
                same = [r for r in known if identity(r) == (*case, seed, *pair)]
                runs.append(same[0] if same else measure(case, pair, seed, until, clients()))
                yield {"clients": CLIENTS, "until": until, "clock": CLOCK, "runs": runs}


def identity(found: dict[str, Any]) -> tuple[Any, ...]:
    """Return which case, seed and rates a run has."""
    return tuple(found[key] for key in ("method", "mode", "seed", "client_lr", "server_lr"))


def best_rates(runs: Runs, case: Case) -> tuple[float, float]:
    """Return the rates of the run of a case that ends best on the first seed."""
    seed = runs[0]["seed"]
    tried = [r for r in runs if identity(r)[:3] == (*case, seed)]
    found = max(tried, key=lambda r: r["curve"][-1][1])
    return found["client_lr"], found["server_lr"]


def accuracy_at(curve: list[list[float]], moment: float) -> float:
    """Return the accuracy at a moment, interpolated between evaluations."""
    points = np.array(curve)
    return float(np.interp(moment, points[:, 0], points[:, 1]))


def shown(result: dict[str, Any], case: Case) -> Runs:
    """Return the runs of a case at its better rates, one per seed."""
    rates = best_rates(result["runs"], case)
    return [r for r in result["runs"] if identity(r) == (*case, r["seed"], *rates)]


def rows(result: dict[str, Any]) -> list[list[str]]:
    """Return the table: accuracy by virtual time, mean and range over seeds."""
    found = []
    for case in CASES:
        runs = shown(result, case)
        cells = [_cell([accuracy_at(r["curve"], t) for r in runs]) for t in moments(result)]
        rates = f"{runs[0]['client_lr']:g}, {runs[0]['server_lr']:g}"
        steps = sum(r["rounds"] for r in runs) / len(runs)
        found.append([f"`{case.method}`", case.mode, rates, f"{steps:.0f}", *cells])
    return found


def moments(result: dict[str, Any]) -> list[float]:
    """Return the virtual times of the table's columns."""
    return [result["until"] * part / 4 for part in range(1, 5)]


def heads(result: dict[str, Any]) -> list[str]:
    """Return the headings of :func:`rows`."""
    return ["method", "server", "rates", "steps", *(f"t = {t:g}" for t in moments(result))]


def clock_blocks(results: Path) -> dict[str, str]:
    """Return the generated block of docs/virtual-clock.md."""
    stored = results / "benchmarks" / "virtual-clock.json"
    result = json.loads(stored.read_text(encoding="utf-8"))
    return {"virtual clock": markdown_table(heads(result), rows(result))}


def _cell(values: list[float]) -> str:
    mean = sum(values) / len(values)
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return f"{mean:.3f}{spread}"


def main() -> None:
    """Measure, print the table, and write the runs if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[77, 78, 79])
    parser.add_argument("--until", type=float, default=200.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    console, result = Console(), dict[str, Any]()
    stored = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    known = stored["runs"] if stored.get("until") == given.until else []
    for result in measure_all(given.seeds, given.until, known):
        console.print(result["runs"][-1])
        if given.json:
            given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    table = Table(*heads(result))
    for row in rows(result):
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
