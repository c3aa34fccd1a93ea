"""Rounds of SuperNodes that answer at once, before and after a change, and where the time goes.

    python -m benchmarks.deployment_nodes [--base COMMIT] [--nodes 10] [--rounds 5] [--repeats 2]

A SuperLink and its SuperNodes are started once, as Flower's own processes on loopback. Then runs
with the ``src`` of the commit and with that of the working tree take turns on them, so both meet
the same machine. The clients have a small model and a few samples: what is left is the way of a
message. Every client notes when its process started and when it was called. The numbers go to
results/benchmarks/deployment-nodes.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loopback import HOST, environment, free_port, start, start_link, write_app
from benchmarks.pages.markdown import table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results/benchmarks/deployment-nodes.json"
BASE = "cd21351"  # the last commit before clients loaded less and evaluations became rarer
CONFIG = 'rounds = 5\nnodes = 10\nrun-dir = ""\nnotes = ""'
SHARED = """
import sys
sys.path.insert(0, {source!r})
"""
# Flower's own SuperNode, but with ten minutes instead of 30 seconds until a process that has not
# reported is started once more: ten processes at once on a busy machine would never be in time.
NODE = """
from flwr.supercore.corestate import in_memory_corestate
from flwr.supernode.cli import flower_supernode

in_memory_corestate.HEARTBEAT_DEFAULT_INTERVAL = 600
flower_supernode()
"""
SERVER = """
from torch import nn
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from fedcraft.flower import Strategy

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    nodes = {name: config["nodes"] for name in ("min_train_nodes", "min_available_nodes")}
    strategy = Strategy(run_dir=config["run-dir"], **nodes)
    arrays = ArrayRecord(nn.Linear(64, 10).state_dict())
    strategy.start(grid, initial_arrays=arrays, num_rounds=config["rounds"])
"""
CLIENT = """
import json, os, time
from pathlib import Path


def process_start():
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    running = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - running + ticks / os.sysconf("SC_CLK_TCK")


started = process_start()

import torch
from flwr.clientapp import ClientApp
from torch import nn
from fedcraft.flower import client_app

inputs, labels = torch.ones(20, 64), torch.arange(20) % 10
data = {"train": (inputs, labels), "test": (inputs, labels)}
answer = client_app(lambda _: nn.Linear(64, 10), lambda _: data)
app = ClientApp()


@app.train()
@app.evaluate()
def note(message, context):
    called, cpu = time.time(), time.process_time()
    reply = answer(message, context)
    noted = {
        "kind": message.metadata.message_type,
        "round": message.content["config"]["server-round"],
        "node": context.node_config["partition-id"],
        "waited": started - message.metadata.created_at,
        "starting": called - started,
        "working": time.time() - called,
        "cpu_before_call": cpu,
        "cpu": time.process_time(),
    }
    with open(context.run_config["notes"], "a") as file:
        file.write(json.dumps(noted) + "\\n")
    return reply
"""


def sources(base: str, folder: Path) -> dict[str, Path]:
    """Copy the ``src`` of a commit and of the working tree, and return where they are."""
    packed = subprocess.run(["git", "archive", base, "src"], cwd=ROOT, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    shutil.copytree(ROOT / "src", folder / "after")
    return {"before": folder / "src", "after": folder / "after"}


def import_costs(versions: dict[str, Path], repeats: int) -> dict[str, list[float]]:
    """Return the CPU seconds of a client's imports, measured in turn.

    Those of Flower and torch alone, and with fedcraft's in each version.
    """
    ground = "import torch; from flwr.supernode.cli import flwr_clientapp"
    codes = {"flower": ground}
    for name, path in versions.items():
        place = f"import sys; sys.path.insert(0, {str(path)!r})"
        codes[name] = f"{ground}; {place}; from fedcraft.flower import client_app"
    costs: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(repeats):
        for name, code in codes.items():
            costs[name].append(_cpu_seconds(code))
    return costs


def _cpu_seconds(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(
    versions: dict[str, Path], home: Path, *, nodes: int, rounds: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """Start the federation, let the versions take turns on it, and yield every run."""
    port = free_port()
    here = environment(home, port)
    projects = {
        name: write_app(home / "apps", name, CONFIG, shared + SERVER, shared + CLIENT)
        for name, path in versions.items()
        for shared in [SHARED.format(source=str(path))]
    }
    with contextlib.ExitStack() as stack:
        start_link(stack, port, here)
        for index in range(nodes):
            words = ("--superlink", f"{HOST}:{port}", "--host", HOST, "--port", str(free_port()))
            node = (sys.executable, "-c", NODE, "--insecure", *words)
            start(stack, (*node, "--node-config", f"partition-id={index}"), here)
        for repeat in range(repeats):
            for name, project in projects.items():
                out = home / f"{name}-{repeat}"
                run = play(stack, project, here, out, nodes=nodes, rounds=rounds)
                yield {"version": name, "nodes": nodes, **run}


def play(
    stack: contextlib.ExitStack,
    project: Path,
    here: dict[str, str],
    out: Path,
    *,
    nodes: int,
    rounds: int,
) -> dict[str, Any]:
    """Play one run and return the seconds of its phases by round, and what clients noted."""
    wanted = {"rounds": rounds, "nodes": nodes, "run-dir": str(out), "notes": f"{out}.jsonl"}
    config = " ".join(f"{name}={json.dumps(value)}" for name, value in wanted.items())
    words = ("flwr", "run", str(project), "link", "--run-config", config, "--stream")
    start(stack, words, here).wait(3600)
    rows = _lines(out / "metrics.jsonl")
    if len(rows) != rounds:
        raise RuntimeError((Path(here["FLWR_HOME"]) / "log.txt").read_text())
    phases = [{name: round(s, 2) for name, s in row["seconds"].items() if s} for row in rows]
    notes = [
        {name: round(v, 3) if isinstance(v, float) else v for name, v in note.items()}
        for note in _lines(Path(f"{out}.jsonl"))
    ]
    return {"seconds": phases, "load": round(os.getloadavg()[0], 1), "notes": notes}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def round_table(runs: list[dict[str, Any]]) -> str:
    """One row per version: seconds and CPU seconds of a round, and the ratio to the first."""
    rows, first = [], None
    for version in ("before", "after"):
        mine = [run for run in runs if run["version"] == version]
        count = sum(len(run["seconds"]) for run in mine)
        totals = {
            phase: sum(s.get(phase, 0.0) for run in mine for s in run["seconds"]) / count
            for phase in ("train", "evaluate", "aggregate")
        }
        messages = [note for run in mine for note in run["notes"]]
        cpu = sum(note["cpu"] for note in messages) / count
        whole = sum(totals.values())
        first = first or (whole, cpu)
        ratios = f"{whole / first[0]:.2f}", f"{cpu / first[1]:.2f}"
        cells = [f"{seconds:.2f}" for seconds in totals.values()]
        cells += [f"{whole:.1f}", ratios[0], f"{cpu:.1f}", ratios[1]]
        rows.append([version, len(messages) // count, *cells])
    heads = ("", "messages", "training s", "evaluation s", "server's work s", "round s", "ratio")
    return table((*heads, "clients' CPU s", "ratio"), rows)


def message_table(runs: list[dict[str, Any]]) -> str:
    """One row per version: the way of a message, as medians over all messages."""
    rows = []
    for version in ("before", "after"):
        notes = [n for run in runs if run["version"] == version for n in run["notes"]]
        parts = ("waited", "starting", "working")
        cells = [f"{statistics.median(note[part] for note in notes):.2f}" for part in parts]
        cpu = statistics.median(note["cpu_before_call"] for note in notes)
        work = statistics.median(note["cpu"] - note["cpu_before_call"] for note in notes)
        rows.append([version, *cells, f"{cpu:.2f}", f"{work:.3f}"])
    heads = ("", "until a process starts, s", "until it is called, s", "the answer, s")
    return table((*heads, "CPU s until it is called", "CPU s of the answer"), rows)


def import_table(costs: dict[str, list[float]]) -> str:
    """CPU seconds of a client's imports."""
    ground = statistics.median(costs["flower"])
    rows = [["Flower and torch alone", f"{ground:.2f}", ""]]
    for name in ("before", "after"):
        cost = statistics.median(costs[name])
        rows.append([f"with `fedcraft.flower`, {name}", f"{cost:.2f}", f"{cost - ground:+.2f}"])
    return table(("imports of a client's process", "CPU s", "fedcraft's part"), rows)


def deployment_blocks(results: Path) -> dict[str, str]:
    """Return the generated block of docs/deployment.md."""
    stored = results / "benchmarks" / RESULTS.name
    return {"deployment-nodes": _tables(json.loads(stored.read_text(encoding="utf-8")))}


def _tables(found: dict[str, Any]) -> str:
    runs = found["runs"]
    nodes, rounds = runs[0]["nodes"], len(runs[0]["seconds"])
    each = len(runs) // 2
    loads = [run["load"] for run in runs]
    busy = f"{min(loads):.0f} to {max(loads):.0f}"
    head = (
        f"A round of {nodes} SuperNodes that answer at once, mean over {each} × {rounds} rounds "
        f"for each version\n(before: commit `{found['base']}`), which took turns. The two cores "
        f"were busy with other work\nas well (load {busy}, with these processes), so a process "
        "takes long to start: the ratios and\nthe CPU seconds say more than the seconds."
    )
    middle = "The way of one message to a client, medians:"
    parts = (head, round_table(runs), middle, message_table(runs), import_table(found["imports"]))
    return "\n\n".join(parts)


def store(found: dict[str, Any]) -> None:
    """Write the numbers, one line per run."""
    runs = ",\n".join(json.dumps(run) for run in found["runs"])
    head = json.dumps({name: value for name, value in found.items() if name != "runs"})
    RESULTS.write_text(f'{head[:-1]}, "runs": [\n{runs}\n]}}\n', encoding="utf-8")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", default=BASE, help="the commit to compare with")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--add", action="store_true", help="keep the runs that are in the file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        versions = sources(options.base, Path(folder))
        costs = import_costs(versions, 5)
        stored = json.loads(RESULTS.read_text(encoding="utf-8")) if options.add else {}
        earlier = stored.get("imports", {})
        costs = {name: earlier.get(name, []) + values for name, values in costs.items()}
        runs: list[dict[str, Any]] = stored.get("runs", [])
        found = {"base": options.base, "imports": costs, "runs": runs}
        sizes = {"nodes": options.nodes, "rounds": options.rounds, "repeats": options.repeats}
        for run in measure(versions, Path(folder) / "flwr", **sizes):
            runs.append(run)
            store(found)  # after every run: a long measurement may be stopped
            print(run["version"], json.dumps(run["seconds"]), flush=True)
    print(_tables(json.loads(RESULTS.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
