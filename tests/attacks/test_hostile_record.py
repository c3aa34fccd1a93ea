"""A run says which of its clients were hostile."""

from __future__ import annotations

import fedcraft
from fedcraft.attacks import attack


def test_the_status_names_the_hostile_clients(tmp_path):
    run = fedcraft.run(
        method="fedavg",
        dataset="digits",
        clients=20,
        rounds=1,
        seed=3,
        executor="serial",
        attack={"name": "sign_flip", "share": 0.2},
        out=tmp_path / "run",
    )
    assert run.status["hostile"] == attack("sign_flip", share=0.2).hostile(20, 3).tolist()
    assert len(run.status["hostile"]) == 4


def test_a_run_without_an_attack_names_nobody(tmp_path):
    run = fedcraft.run(
        method="fedavg", dataset="digits", rounds=1, executor="serial", out=tmp_path / "run"
    )
    assert "hostile" not in run.status
