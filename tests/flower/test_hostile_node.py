"""Five honest nodes and one that sends minus a hundred times its update and claims 10^9 samples."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from real import APPS, WarmFederation
from safetensors.torch import load_file

sys.path.insert(0, str(APPS / "hostile"))
from hostile import task

from fedcraft import Run
from fedcraft.report.page import page

ROUNDS = 15
PATIENCE = 900

pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmFederation]:
    with WarmFederation(tmp_path_factory.mktemp("hostile")) as started:
        started.start_all({f"node-{i}": started.node(i) for i in range(task.CLIENTS)})
        yield started


@pytest.fixture(scope="module")
def runs(federation: WarmFederation, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The honest run and the one with the liar, on the same SuperLink."""
    home = tmp_path_factory.mktemp("runs")
    for name, lies in (("honest", False), ("lied-to", True)):
        config = {"rounds": ROUNDS, "lies": lies, "out": str(home / name)}
        federation.run(APPS / "hostile", config, name=name).wait(PATIENCE)
    return {name: home / name for name in ("honest", "lied-to")}


def test_the_liar_costs_less_than_a_twentieth(runs: dict[str, Path]) -> None:
    honest, attacked = (task.accuracy(load_file(p / "model.safetensors")) for p in runs.values())
    assert honest > 0.6
    assert attacked >= honest - 0.05


def test_the_liar_is_named_in_the_log_and_in_the_report(
    runs: dict[str, Path], federation: WarmFederation
) -> None:
    folder = runs["lied-to"]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == ROUNDS
    assert all(task.LIAR in row["left_out"] for row in rows)
    assert f"left out {task.LIAR} (update" in (folder / "log.txt").read_text()
    assert f"the guard left out client {task.LIAR}" in federation.log("lied-to")
    text = page([Run(folder)])
    suspects = text[text.index("Suspects</h2>") :]
    assert f'<th scope="row">{task.LIAR}</th>' in suspects
