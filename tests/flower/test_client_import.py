"""A SuperNode starts a process for every message: what a client loads is paid for every time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# One training message from start to end, as a process of a SuperNode would answer it.
ANSWER = """
import json, sys
import flwr.app, flwr.clientapp, torch
before = set(sys.modules)
from fedcraft.flower import client_app
imported = set(sys.modules) - before
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
module = torch.nn.Linear(4, 2)
data = {name: (torch.ones(6, 4), torch.zeros(6, dtype=torch.long)) for name in ("train", "test")}
app = client_app(lambda _: module, lambda _: data, "ditto+craft", one_thread=True)
content = {"arrays": ArrayRecord(module.state_dict()), "config": ConfigRecord({"lr": 0.1})}
context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
reply = app(Message(RecordDict(content), dst_node_id=1, message_type="train"), context)
assert reply.content["metrics"]["num-examples"] == 6
print(json.dumps([sorted(imported), sorted(set(sys.modules) - before)]))
"""
PARTS = ("engine", "runs", "config", "studies", "metrics", "report", "flower.server")
SERVER = tuple(f"fedcraft.{part}" for part in PARTS)
HEAVY = {"scipy", "sklearn", "pandas", "pydantic", "tomli_w", "rich", "typer", "matplotlib", "ray"}


def test_a_client_loads_neither_the_server_nor_its_libraries() -> None:
    words = [sys.executable, "-c", ANSWER]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    for loaded in json.loads(done.stdout.splitlines()[-1]):
        server = [
            name for name in loaded if name.startswith(tuple(f"fedcraft.{s}" for s in SERVER))
        ]
        assert server == []
        assert {name.split(".")[0] for name in loaded} & HEAVY == set()


def test_the_public_names_are_listed_and_others_are_an_error() -> None:
    import fedcraft.flower

    assert dir(fedcraft.flower) == ["SecureAnswers", "Strategy", "client_app", "client_id_mod"]
    with pytest.raises(AttributeError, match="has no attribute 'Stratgy'"):
        _ = fedcraft.flower.Stratgy
