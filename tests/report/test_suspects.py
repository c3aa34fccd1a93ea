"""The report names clients that pull against the others."""

from __future__ import annotations

import pytest

import fedcraft
from fedcraft.attacks import attack
from fedcraft.report.page import page
from fedcraft.report.sections.suspects import suspects
from fedcraft.runs.select import group


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suspects")
    return fedcraft.run(
        dataset="digits",
        partition="iid",
        clients=10,
        clients_per_round=10,
        rounds=6,
        diagnostics_every=2,
        model_options={"hidden": [8]},
        attack={"name": "sign_flip", "share": 0.2},
        guard="default",
        executor="serial",
        out=folder / "run",
    )


def test_hostile_clients_are_the_suspects(attacked):
    named = {row["client"] for row in suspects(group([attacked])[0])}
    hostile = attack("sign_flip", share=0.2).hostile(10, attacked.seed)
    assert named == {str(client) for client in hostile}


def test_the_page_names_them_with_the_caveat(attacked):
    text = page([attacked])
    assert '<h2 id="p0-suspects-title">Suspects</h2>' in text
    assert "Honest clients with rare data look the same" in text
    assert "with the others" in text


def test_a_run_without_the_table_has_no_suspects(attacked, tmp_path):
    quiet = fedcraft.run(
        dataset="digits",
        clients=5,
        rounds=1,
        model_options={"hidden": [4]},
        executor="serial",
        diagnostics_every=0,
        out=tmp_path / "quiet",
    )
    assert suspects(group([quiet])[0]) == []
    assert "Suspects</h2>" not in page([quiet])
