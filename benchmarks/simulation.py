"""The speed of simulated rounds: fedcraft, a plain PyTorch loop, pfl and Flower, in turns.

    python -m benchmarks.simulation [--data DIR] [--pfl-python PYTHON] [--turns 7] [--json FILE]

Workloads: FEMNIST & MLP (1,000 writers, 10 a round, batch 50) and CIFAR-10 & CNN (100 clients, 10 a
round, batch 50), FedAvg, one local epoch over the same clients in the same rounds. The contestants
take turns within one measurement, so other load on the machine affects them alike; every number is
also given as a multiple of the floor (the median over the turns). The floor is a hand-written loop,
in one process or in two over shared memory, whichever is faster; likewise for evaluations. pfl
evaluates all samples at once, the others client by client.

pfl needs a separate environment: ``pip install pfl==0.6.0 torch`` and --pfl-python.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.simulators.contestant import Contestant
from benchmarks.simulators.data import prepare

ROUNDS = {"femnist": 20, "cifar10": 1}  # in one turn
TITLES = {"femnist": "FEMNIST & MLP", "cifar10": "CIFAR-10 & CNN"}
SHARED_WORK = 100  # active clients of the scale test
ROOT = Path(__file__).resolve().parents[1]


def contestants(folder: Path, data: str, pfl_python: str | None) -> list[Contestant]:
    """Return the contestants of a workload; the two floors come first."""
    run, place = [sys.executable, "-m"], str(folder)
    simulators = "benchmarks.simulators"
    ours = [*run, f"{simulators}.ours", place, data]
    everybody = [
        Contestant("floor, 1 process", [[*run, f"{simulators}.floor", place, "1"]]),
        Contestant("floor, 2 processes", [[*run, f"{simulators}.floor", place, "2"]]),
        Contestant("fedcraft processes 2", [[*ours, "processes", "2", "fedavg"]]),
        Contestant("fedcraft serial", [[*ours, "serial", "1", "fedavg"]]),
        Contestant("fedcraft processes 2, CRAFT", [[*ours, "processes", "2", "craft"]]),
    ]
    if folder.name == "femnist":
        everybody.append(
            Contestant("fedcraft vectorized 2", [[*ours, "vectorized", "2", "fedavg"]])
        )
    everybody += [_pfl(place, pfl_python, 1), _pfl(place, pfl_python, 2)]
    flower = Contestant(
        "Flower simulation", [[*run, f"{simulators}.flower_simulation", place, "2"]]
    )
    return [*everybody, flower]


def _pfl(place: str, python: str | None, processes: int) -> Contestant:
    script = str(ROOT / "benchmarks/simulators/pfl_research.py")
    command = [python or "", script, place]
    contestant = Contestant(
        f"pfl, {processes} process{'es' * (processes > 1)}", [command] * processes
    )
    if python is None:
        contestant.missing = "not installed: see --pfl-python"
    elif processes > 1:
        addresses = ",".join(f"localhost:{_free_port()}" for _ in range(processes))
        contestant.environments = [
            {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)}
            for rank in range(processes)
        ]
    return contestant


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def compete(name: str, everybody: list[Contestant], turns: int, console: Console) -> None:
    """Let all contestants warm up, then train and evaluate in turns."""
    for contestant in everybody:
        if not contestant.missing:
            console.print(f"[dim]{TITLES[name]}: starting {contestant.name}[/]")
            contestant.start()
    rapid = [c for c in everybody if "Flower" not in c.name]
    for contestant in rapid:
        contestant.ask({"do": "train", "rounds": 2})
    for turn in range(turns):
        console.print(f"[dim]{TITLES[name]}: turn {turn + 1} of {turns}[/]")
        for contestant in rapid:
            contestant.train(ROUNDS[name])
        for contestant in rapid:
            contestant.evaluate()
    for contestant in everybody:
        if contestant not in rapid:  # far behind: one turn shows it
            contestant.train(5 if name == "femnist" else 1)
            contestant.evaluate()
    for contestant in everybody:
        if not contestant.missing:
            contestant.stop()


def report(name: str, everybody: list[Contestant], console: Console) -> list[dict[str, Any]]:
    """Print and return one row per contestant."""
    floors = [c for c in everybody if c.name.startswith("floor")]
    floor = min(floors, key=lambda c: median(c.per_sample()))
    quickest = min(floors, key=lambda c: median(c.evaluations))
    table = Table(title=f"{TITLES[name]}: the floor is '{floor.name}'")
    heads = ("", "s / round", "x floor", "samples / s", "evaluate s", "x floor", "start s", "MB")
    for head in heads:
        table.add_column(head, justify="left" if not head else "right")
    rows = []
    typical = median(floor.samples)
    for contestant in everybody:
        if contestant.missing or not contestant.seconds:
            table.add_row(contestant.name, contestant.missing or "no result")
            rows.append({"workload": name, "name": contestant.name, "missing": contestant.missing})
            continue
        row = _row(name, contestant, floor, quickest, typical)
        rows.append(row)
        table.add_row(
            contestant.name,
            f"{row['seconds_per_round']:.4f}",
            f"{row['x_floor']:.2f}",
            f"{row['samples_per_second']:.0f}",
            f"{row['evaluate_seconds']:.3f}",
            f"{row['evaluate_x_floor']:.2f}",
            f"{row['start_up_seconds']:.1f}",
            f"{row['memory_mb']:.0f}",
        )
    console.print(table)
    return rows


def _row(
    name: str, contestant: Contestant, floor: Contestant, quickest: Contestant, typical: float
) -> dict[str, Any]:
    pace = median(contestant.per_sample())
    return {
        "workload": name,
        "name": contestant.name,
        "seconds_per_round": pace * typical,
        "x_floor": _ratio(contestant.per_sample(), floor.per_sample()),
        "samples_per_second": 1 / pace,
        "evaluate_seconds": median(contestant.evaluations),
        "evaluate_x_floor": _ratio(contestant.evaluations, quickest.evaluations),
        "start_up_seconds": contestant.start_up,
        "memory_mb": contestant.memory_mb,
        "accuracy": contestant.accuracy,
        "turns": contestant.per_sample(),
    }


def _ratio(own: Sequence[float], floor: Sequence[float]) -> float:
    """Return the median ratio over the turns; the ratio of the medians if the turns do not pair."""
    if len(own) == len(floor):
        return median(a / b for a, b in zip(own, floor, strict=True))
    return median(own) / median(floor)


def scale(data: str, work: Path, turns: int, console: Console) -> list[dict[str, Any]]:
    """Compare 1,000 clients with 100,000 virtual ones that share their data, 100 a round."""
    base = [sys.executable, "-m", "benchmarks.simulators.ours", str(work), data, "processes", "2"]
    pair = [
        Contestant(f"{count:,} clients", [[*base, "craft", str(count)]])
        for count in (1000, 100_000)
    ]
    for contestant in pair:
        contestant.start()
        contestant.ask({"do": "train", "rounds": 2})
    for _ in range(turns):
        for contestant in pair:
            contestant.train(5)
    table = Table(title="Scale: FEMNIST & MLP, 100 clients a round, CRAFT")
    for head in ("", "s / round", "x 1,000 clients", "MB"):
        table.add_column(head, justify="left" if not head else "right")
    rows = []
    for contestant in pair:
        contestant.stop()
        ratio = _ratio(contestant.per_sample(), pair[0].per_sample())
        seconds = median(contestant.seconds)
        rows.append(
            {
                "workload": "scale",
                "name": contestant.name,
                "seconds_per_round": seconds,
                "x_1000_clients": ratio,
                "memory_mb": contestant.memory_mb,
            }
        )
        table.add_row(
            contestant.name, f"{seconds:.4f}", f"{ratio:.2f}", f"{contestant.memory_mb:.0f}"
        )
    console.print(table)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default=os.environ.get("FEDCRAFT_DATA", ""))
    parser.add_argument("--pfl-python", default=None)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--only", choices=[*TITLES, "scale"], default=None)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    console, rows = Console(width=110), []
    with tempfile.TemporaryDirectory() as scratch:
        for name in TITLES:
            if options.only not in (None, name):
                continue
            folder = Path(scratch) / name
            prepare(name, options.data or None, folder)
            everybody = contestants(folder, options.data, options.pfl_python)
            compete(name, everybody, options.turns, console)
            rows += report(name, everybody, console)
        if options.only in (None, "scale"):
            folder = Path(scratch) / "scale"
            prepare("femnist", options.data or None, folder, SHARED_WORK)
            rows += scale(options.data, folder, options.turns, console)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
