"""A real federation in which everything goes wrong once, and training ends as it should."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from flwr.app import ArrayRecord, Message
from real import APPS, WarmFederation, wait_for
from run_federation import make_certificates, make_node_key
from safetensors.torch import load_file

from benchmarks.grids import InProcessGrid
from fedcraft.flower import Strategy, client_app

sys.path.insert(0, str(APPS / "faulty"))
from faulty import task

METHOD, ROUNDS = "ditto+craft", 4
DEADLINE = float(os.environ.get("FEDCRAFT_TEST_DEADLINE", "15"))
PATIENCE = 900
FAULTS = "1.0.nan,1.1.shape,2.1.silent,2.2.killed"  # round.client.fault

pytestmark = pytest.mark.slow


class Story:
    """What happened, for the tests to look at."""

    def __init__(self, home: Path) -> None:
        self.home, self.out = home, home / "out"
        self.out.mkdir()
        self.logs: dict[str, str] = {}

    @property
    def rows(self) -> list[dict[str, Any]]:
        path = self.out / "run" / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]


def _admit_strangers(federation: WarmFederation, story: Story) -> None:
    """Nodes that must not get in: no key, a key nobody registered, a certificate of others."""
    foreign, _, _ = make_certificates(story.home / "foreign")
    make_node_key(story.home / "foreign", "key")
    key = story.home / "foreign" / "key"
    federation.start_node("keyless", {"partition-id": 7}, authenticate=False)
    federation.start_node("unknown", {"partition-id": 8}, key=key)
    federation.start_node("deceived", {"partition-id": 9}, key=key, ca=foreign)


def _play(federation: WarmFederation, story: Story) -> None:
    _admit_strangers(federation, story)
    config = {"method": METHOD, "rounds": ROUNDS, "deadline": DEADLINE, "out": str(story.out)}
    config["faults"] = FAULTS
    run = federation.run(APPS / "faulty", config, name="first")

    def reached(number: int, who: str) -> bool:
        assert run.poll() is None, federation.log("first")
        return any(story.out.glob(f"client-{who}-in-round-{number}"))

    wait_for(lambda: reached(2, "2"), PATIENCE, "client 2 in round 2")
    federation.stop("node-2", hard=True)
    wait_for(lambda: reached(3, "*"), PATIENCE, "round 3")
    os.kill(int((story.out / "server.pid").read_text()), signal.SIGKILL)
    federation.stop("first")
    # Only now: two clients are quick, and could end the rounds before the third is let in again.
    federation.restart_node("node-2", federation.node(2), PATIENCE)
    federation.run(APPS / "faulty", config, name="again").wait(PATIENCE)


@pytest.fixture(scope="module")
def story(real_federation: WarmFederation, tmp_path_factory: pytest.TempPathFactory) -> Story:
    told = Story(tmp_path_factory.mktemp("faults"))
    try:
        _play(real_federation, told)
    finally:
        names = ("first", "again", "keyless", "unknown", "deceived")
        told.logs.update({name: real_federation.log(name) for name in names})
        for name in {"first", *names[2:]} & set(real_federation.processes):
            real_federation.stop(name)
    return told


def test_training_ends_with_the_right_number_of_rounds(story: Story) -> None:
    assert [row["round"] for row in story.rows] == list(range(1, ROUNDS + 1)), story.logs
    status = json.loads((story.out / "run" / "status.json").read_text())
    assert (status["state"], status["round"]) == ("finished", ROUNDS)


def test_nan_and_wrong_shape_are_refused_and_counted(story: Story) -> None:
    kinds = {refused["client"]: refused["kind"] for refused in story.rows[0]["refused"]}
    assert kinds[0] == "nonfinite"
    assert kinds[1] == "malformed"
    assert story.rows[0]["clients"] == [2]


def test_the_silent_and_the_killed_are_missed_and_come_back(story: Story) -> None:
    assert 1 in story.rows[1]["missing"]
    assert story.rows[1]["dropped"] == [1, 2]  # Flower may notice the death before the deadline
    later = {client for row in story.rows[2:] for client in row["clients"]}
    assert later == {0, 1, 2}


def test_the_server_was_killed_and_went_on(story: Story) -> None:
    assert re.search("Continuing after round [23] of 4", story.logs["again"])


def test_strangers_are_refused(story: Story) -> None:
    for name in ("keyless", "unknown", "deceived"):
        assert "SuperNode ID" not in story.logs[name], story.logs[name]
    assert "must be registered via the CLI" in story.logs["keyless"], story.logs["keyless"]
    assert "could not establish a connection" in story.logs["unknown"], story.logs["unknown"]
    assert "CERTIFICATE_VERIFY_FAILED" in story.logs["deceived"]
    clients = {client for row in story.rows for client in row["clients"]}
    assert clients <= {0, 1, 2}


def test_nothing_was_lost(story: Story) -> None:
    """The model is that of a quiet federation in which the same replies came and no others."""
    assert [row["states_lost"] for row in story.rows] == [[]] * ROUNDS
    came = {row["round"]: row["clients"] for row in story.rows}

    def only_those(question: Message, reply: Message) -> Message | None:
        if question.metadata.message_type != "train":
            return reply
        number = question.content["config"]["server-round"]
        return reply if reply.content["metrics"]["client-id"] in came[number] else None

    app = client_app(
        lambda context: task.model(),
        lambda context: task.federation().client(int(context.node_config["partition-id"])),
        METHOD,
        one_thread=True,
    )
    start = task.model()
    options = {"model": start, "client_lr": task.CLIENT_LR, "seed": task.SEED}
    quiet = Strategy(METHOD, fraction_evaluate=0.0, one_thread=True, **options)
    grid = InProcessGrid(app, task.CLIENTS, fault=only_those)
    quiet.start(grid, ArrayRecord(start.state_dict()), ROUNDS, timeout=0.2)
    found = load_file(story.out / "run" / "model.safetensors")
    expected = quiet.state.wire.layout.unflatten(small.theta(quiet))
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
