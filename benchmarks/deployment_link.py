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
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
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

HOST = "127.0.0.1"
PROJECT = """
[project]
name = "link"
version = "1.0.0"
description = "benchmark"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedcraft"
[tool.flwr.app.components]
serverapp = "link.server_app:app"
clientapp = "link.server_app:app"
[tool.flwr.app.config]
model = "0.2M"
clients = 10
strategy = 0
rounds = 3
out = ""
"""

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
    port = _free_port()
    environment = _prepare(home, port)
    out = home / "answer.json"
    out.unlink(missing_ok=True)
    link = ("flower-superlink", "--insecure", "--host", HOST, "--port", str(port))
    feeder = ("-m", "benchmarks.deployment_link", "--feed", f"{HOST}:{port}")
    with contextlib.ExitStack() as stack:
        _start(stack, link, environment)
        _wait_for_link(port)
        words = (*feeder, "--models", case["model"], "--clients", str(case["clients"]))
        _start(stack, (sys.executable, *words), environment)
        wanted = {**case, "out": str(out), "strategy": STRATEGIES.index(case["strategy"])}
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in wanted.items())
        run = ("flwr", "run", str(home / "app"), "link", "--run-config", config, "--stream")
        _start(stack, run, environment).wait(3600)
        if not out.exists():
            raise RuntimeError((home / "log.txt").read_text())
        answer: dict[str, Any] = json.loads(out.read_text())
    return {**case, **answer}


def _start(
    stack: contextlib.ExitStack, words: tuple[str, ...], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    with (Path(environment["FLWR_HOME"]) / "log.txt").open("ab") as log:
        process = subprocess.Popen(words, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def end() -> None:
        process.kill()
        process.wait()

    stack.callback(end)
    return process


def _prepare(home: Path, port: int) -> dict[str, str]:
    package = home / "app" / "link"
    package.mkdir(parents=True, exist_ok=True)
    (home / "app" / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").touch()
    (package / "server_app.py").write_text(
        "from benchmarks import deployment_link\n\napp = deployment_link.app\n"
    )
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "link"\n[superlink.link]\naddress = "{HOST}:{port}"\n'
        "insecure = true\n"
    )
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
    }


def _wait_for_link(port: int) -> None:
    for _ in range(300):
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=2)
            return
        time.sleep(0.2)
    raise TimeoutError("the SuperLink does not answer")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


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
