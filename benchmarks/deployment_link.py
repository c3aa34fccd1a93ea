"""A round over a real SuperLink: fedcraft's strategy against Flower's own FedAvg, with HTTP.

    python -m benchmarks.deployment_link [--models 0.2M 2M 25M] [--clients 10 50] [--json FILE]

The SuperLink and the ServerApp are Flower's own processes. The nodes are connections of Flower's
Fleet client in another process that answers at once with prepared updates. So the benchmark
measures transport and server, without training and without the pauses of SuperNodes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supernode.fleet_http_connection import http_request_response

from benchmarks.deployment import (
    MODELS,
    STRATEGIES,
    broadcast,
    peak_bytes,
    play_rounds,
    show,
    strategy_of,
)
from benchmarks.loopback import HOST, environment, free_port, start, start_link, write_app

CONFIG = 'model = "0.2M"\nclients = 10\nstrategy = 0\nrounds = 3\nout = ""'
APP = "from benchmarks import deployment_link\n\napp = deployment_link.app\n"

app = ServerApp()


@app.main()
def serve(grid: Grid, context: Context) -> None:
    """Act as the ServerApp: run some rounds with one strategy and return their cost."""
    config = context.run_config
    model, clients = str(config["model"]), int(config["clients"])
    strategy = strategy_of(STRATEGIES[int(config["strategy"])], clients)
    record = ArrayRecord({name: Array(value) for name, value in broadcast(model).items()})
    while len(list(grid.get_node_ids())) < clients:
        time.sleep(0.2)
    before = peak_bytes()
    rounds = list(play_rounds(strategy, grid, record, int(config["rounds"])))
    best = {name: min(row[name] for row in rounds) for name in rounds[0]}
    answer = {**best, "memory_mb": (peak_bytes() - before) / 2**20}
    Path(str(config["out"])).write_text(json.dumps(answer))


def feed(address: str, model: str, clients: int) -> None:
    """Act as all nodes: answer every message at once."""
    start = broadcast(model)
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(http_request_response(address, True)) for _ in range(clients)]
        records = [_update(start, index) for index in range(clients)]
        while True:
            for index, (_, receive, send, _, _, pull, push, confirm) in enumerate(nodes):
                got = receive()
                if got is not None:
                    run = got[0].metadata.run_id
                    names = [tree.object_id for tree in iterate_object_tree(got[1])]
                    pull_objects(names, partial(pull, run))
                    confirm(run, got[0].metadata.message_id)
                    _answer(got[0], index, records[index], send, push)
            time.sleep(0.02)


def _update(start: dict[str, Any], index: int) -> ArrayRecord:
    draw = np.random.default_rng(index)
    return ArrayRecord(
        {
            name: Array(value + 0.01 * draw.standard_normal(value.shape, dtype=np.float32))
            for name, value in start.items()
        }
    )


def _answer(question: Message, index: int, record: ArrayRecord, send: Any, push: Any) -> None:
    metrics = MetricRecord({"num-examples": 100 + index, "client-id": index})
    reply = Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=question)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    objects = get_all_nested_objects(reply)
    wanted, session = send(reply, get_object_tree(reply), 0.0)
    for key in wanted:
        push(question.metadata.run_id, session, key, objects[key].deflate())


def measure(case: dict[str, Any], home: Path) -> dict[str, Any]:
    """Start everything for one case, wait for the ServerApp's answer, end everything."""
    port = free_port()
    root = Path(__file__).parents[1]
    here = {**environment(home, port), "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    project = write_app(home / "apps", "link", CONFIG, APP, APP)
    out = home / "answer.json"
    out.unlink(missing_ok=True)
    feeder = ("-m", "benchmarks.deployment_link", "--feed", f"{HOST}:{port}")
    with contextlib.ExitStack() as stack:
        start_link(stack, port, here)
        words = (*feeder, "--models", case["model"], "--clients", str(case["clients"]))
        start(stack, (sys.executable, *words), here)
        wanted = {**case, "out": str(out), "strategy": STRATEGIES.index(case["strategy"])}
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in wanted.items())
        run = ("flwr", "run", str(project), "link", "--run-config", config, "--stream")
        start(stack, run, here).wait(3600)
        if not out.exists():
            raise RuntimeError((home / "log.txt").read_text())
        answer: dict[str, Any] = json.loads(out.read_text())
    return {**case, **answer}


def main() -> None:
    """Measure every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["0.2M", "2M"])
    parser.add_argument("--clients", type=int, nargs="+", default=[10])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--feed", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.feed:
        feed(options.feed, options.models[0], options.clients[0])
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for model in options.models:
            for clients in options.clients:
                for name in STRATEGIES:
                    case = {"model": model, "clients": clients, "strategy": name}
                    rows.append(measure({**case, "rounds": options.rounds}, Path(home)))
    show(rows)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
