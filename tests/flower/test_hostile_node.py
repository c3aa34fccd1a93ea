"""Five honest nodes and one that lies, in one way after the other."""

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
FOUND = {"flip": "", "hundredfold": "update ", "claim": "claims "}
"""How the guard's reason begins; a flip is found by its answers or by its cosine."""
FREE = {"flip": 5, "hundredfold": 0, "claim": 0}
"""Rounds in which the liar may take part: nobody has answered a step in the first."""

pytestmark = pytest.mark.federation
each_lie = pytest.mark.parametrize("lie", FOUND)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmFederation]:
    with WarmFederation(tmp_path_factory.mktemp("hostile")) as started:
        started.start_all({f"node-{i}": started.node(i) for i in range(task.CLIENTS)})
        yield started


@pytest.fixture(scope="module")
def runs(federation: WarmFederation, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The honest run and one for each lie, on the same SuperLink."""
    home = tmp_path_factory.mktemp("runs")
    found = {}
    for lie in ("", *FOUND):
        name = lie or "honest"
        config = {"rounds": ROUNDS, "lie": lie, "out": str(home / name)}
        federation.run(APPS / "hostile", config, name=name).wait(PATIENCE)
        found[name] = home / name
    return found


@each_lie
def test_the_liar_costs_less_than_a_twentieth(runs: dict[str, Path], lie: str) -> None:
    honest, attacked = (
        task.accuracy(load_file(runs[name] / "model.safetensors")) for name in ("honest", lie)
    )
    assert honest > 0.6
    assert attacked >= honest - 0.05


@each_lie
def test_the_liar_is_named_in_the_log_and_in_the_report(
    runs: dict[str, Path], federation: WarmFederation, lie: str
) -> None:
    folder = runs[lie]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == ROUNDS
    named = sum(task.LIAR in row.get("left_out", ()) for row in rows)
    assert named >= ROUNDS - FREE[lie]
    assert f"left out {task.LIAR} ({FOUND[lie]}" in (folder / "log.txt").read_text()
    assert f"the guard left out client {task.LIAR}: {FOUND[lie]}" in federation.log(lie)
    text = page([Run(folder)])
    suspects = text[text.index("Suspects</h2>") :]
    assert f'<th scope="row">{task.LIAR}</th>' in suspects
