"""A real SuperLink with TLS and five SuperNodes: secure rounds, drop-outs, a restart.

Clients drop out by a plan (``apps/secure``), in every stage and once two together. The ServerApp
writes everything that it receives to files, and clients keep their updates for the comparison.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from real import APPS, WarmFederation
from safetensors.torch import load_file

from benchmarks.grids import InProcessGrid
from fedcraft.flower import Strategy, client_app

sys.path.insert(0, str(APPS / "secure"))
from secure_app import task

ROUNDS = 9
KILLED = 11  # the sum in whose request the first ServerApp dies: in round 9
PATIENCE = 1500

pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secure")
    with WarmFederation(folder) as federation:
        federation.start_all({f"node-{i}": federation.node(i) for i in range(task.CLIENTS)})
        out = {"rounds": ROUNDS, "out": str(folder / "out")}
        federation.run(APPS / "secure", {**out, "kill": KILLED}, name="first").wait(PATIENCE)
        federation.run(APPS / "secure", {**out, "kill": 0}, name="second").wait(PATIENCE)
    return folder


def test_all_rounds_count_and_drop_outs_are_in_the_table(home):
    rows = [json.loads(line) for line in (home / "out/run/metrics.jsonl").open()]
    assert [row["round"] for row in rows] == list(range(1, ROUNDS + 1))
    assert all(row["secure"]["sums"] <= task.OPTIONS.sums for row in rows)


def test_the_model_is_that_of_plain_rounds_with_the_same_clients(home):
    """The clients of each round are those that the table names."""
    rows = [json.loads(line) for line in (home / "out/run/metrics.jsonl").open()]
    expected = _plain([set(row["clients"]) for row in rows])
    found = load_file(home / "out/run/model.safetensors")
    start = task.model().state_dict()
    moved = torch.cat([(found[name] - start[name]).reshape(-1) for name in start])
    plain = torch.cat([(expected[name] - start[name]).reshape(-1) for name in start])
    assert float((moved - plain).norm() / plain.norm()) < 0.03


def test_no_update_is_in_anything_that_the_server_received(home):
    updates = [np.load(path) for path in (home / "states").glob("round-*-client-*.npy")]
    assert len(updates) >= 5 * task.CLIENTS
    checked = 0
    for path in sorted((home / "out/received").glob("*.npy")):
        raw = np.load(path).tobytes()
        for values in _readings(raw, len(updates[0])):
            checked += 1
            assert max(abs(np.corrcoef(values, u)[0, 1]) for u in updates) < 0.2, path.name
    assert checked >= task.CLIENTS


def _readings(raw: bytes, size: int) -> list[np.ndarray]:
    """The ways in which an array of bytes could hold an update: one number per coordinate."""
    kinds = (np.uint8, np.uint16, np.float32, np.float64)
    fitting = [kind for kind in kinds if len(raw) == size * np.dtype(kind).itemsize]
    found = [np.frombuffer(raw, kind).astype(np.float64) for kind in fitting]
    if len(raw) == 3 * size:
        found.append(np.frombuffer(raw, np.uint8).reshape(-1, 3)[:, 2].astype(np.float64))
    return [np.nan_to_num(values, posinf=0, neginf=0) for values in found]


def _plain(clients: list[set[int]]) -> dict[str, torch.Tensor]:
    def only(question: Any, reply: Any) -> Any:
        number = int(question.content["config"]["server-round"])
        return reply if reply.content["metrics"]["client-id"] in clients[number - 1] else None

    app = client_app(
        lambda context: task.model(),
        lambda context: task.federation().client(int(context.node_config["partition-id"])),
        "craft",
        one_thread=True,
    )
    strategy = Strategy(
        "craft", model=task.model(), client_lr=task.CLIENT_LR, seed=task.SEED,
        fraction_evaluate=0.0, one_thread=True,
    )  # fmt: skip
    from flwr.app import ArrayRecord

    grid = InProcessGrid(app, task.CLIENTS, fault=only)
    strategy.start(grid, ArrayRecord(task.model().state_dict()), len(clients), timeout=0.2)
    return strategy.state.wire.layout.unflatten(strategy.state.server.output)
