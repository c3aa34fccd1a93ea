"""Runs with hostile clients and guards: the same promises as every run."""

from __future__ import annotations

import csv
import json

import pytest
import torch

from fedcraft import Config, Run
from fedcraft.attacks import attack
from fedcraft.engine import run
from fedcraft.errors import CheckpointError, ConfigError
from fedcraft.methods import method
from fedcraft.models import build

LIARS = {"share": 0.3, "samples": 1e9}


def guarded(name="craft", guard="trust"):
    return method(name, guard=guard)


@pytest.mark.parametrize("name", ["sign_flip", "gaussian", "label_flip", "min_max"])
def test_an_attack_has_the_same_bits_on_any_number_of_workers(
    name, federation, model, settings, same_bits
):
    hostile = attack(name, **LIARS)
    alone = run(guarded(), federation, model, settings(rounds=3), attack=hostile)
    together = settings(rounds=3, executor="processes", workers=2)
    same_bits(run(guarded(), federation, model, together, attack=hostile), alone)
    honest = run(guarded(), federation, model, settings(rounds=3))
    assert not torch.equal(honest.vector, alone.vector)


def test_a_guarded_run_under_attack_resumes_exactly(
    federation, model, settings, tmp_path, same_run
):
    hostile = attack("sign_flip", **LIARS)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(guarded(), federation, model, settings(rounds=6), whole, attack=hostile)
    run(guarded(), federation, model, settings(rounds=3), cut, attack=hostile)
    run(guarded(), federation, model, settings(rounds=6), cut, attack=hostile, resume=True)
    same_run(whole, cut)
    last = [_last_line(path / "cohorts.csv") for path in (whole, cut)]
    assert last[0] == last[1]


def _last_line(path):
    return path.read_text(encoding="utf-8").splitlines()[-1]


def test_another_guard_or_attack_is_another_run(federation, model, settings, tmp_path):
    hostile = attack("sign_flip", **LIARS)
    run(guarded(), federation, model, settings(rounds=2), tmp_path, attack=hostile)
    for other in (
        {"method": guarded(guard="cosine"), "attack": hostile},
        {"method": method("craft"), "attack": hostile},
        {"method": guarded(), "attack": attack("veto", **LIARS)},
        {"method": guarded(), "attack": None},
    ):
        chosen = other.pop("method")
        with pytest.raises(CheckpointError, match=r"guard was|attack was"):
            run(chosen, federation, model, settings(rounds=4), tmp_path, resume=True, **other)


def test_cohorts_csv_has_every_client_of_a_diagnosed_round_and_who_was_left_out(
    federation, model, settings, tmp_path
):
    hostile = attack("veto", share=0.3)
    chosen = settings(rounds=6, clients_per_round=10, diagnostics_every=3, evaluate_every=6)
    run(guarded(guard="default"), federation, model, chosen, tmp_path, attack=hostile)
    with (tmp_path / "cohorts.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open(encoding="utf-8")]
    for record in records:
        here = [row for row in rows if int(row["round"]) == record["round"]]
        left_out = {int(row["client"]) for row in here if row["left_out"]}
        assert left_out == set(record.get("left_out", []))
        if record["round"] in (3, 6):
            assert [int(row["client"]) for row in here] == record["clients"]
            kept = [row for row in here if not row["left_out"]]
            assert sum(float(row["weight"]) for row in kept) == pytest.approx(1)
            assert all(float(row["influence"]) >= 0 for row in kept)
    log = (tmp_path / "log.txt").read_text(encoding="utf-8")
    caught = [record for record in records if record.get("left_out")]
    assert caught
    assert log.count("the guard left out") == len(caught)
    shares = records[-1]["left_out_shares"]
    assert shares["hostile"] > shares["honest"]
    pytest.importorskip("pandas")
    assert len(Run(tmp_path).cohorts()) == len(rows)


def test_a_configuration_names_guard_and_attack():
    config = Config(attack={"name": "veto", "share": 0.2}, guard={"name": "krum", "hostile": 2})
    assert config.name == "craft (guard krum)"
    assert Config(guard="default").guard == {"name": "default"}
    for wrong, message in (
        ({"guard": {"name": "krumm"}}, "Did you mean 'krum'"),
        ({"guard": {"name": "krum", "hostil": 2}}, "hostil.*Did you mean 'hostile'"),
        ({"guard": {"hostile": 2}}, "guard: none takes no parameter 'hostile'"),
        ({"attack": {"share": 0.1}}, r"attack\.name"),
        ({"attack": {"name": "vetoo"}}, "Did you mean 'veto'"),
        ({"attack": {"name": "veto", "share": 2}}, "share"),
    ):
        with pytest.raises(ConfigError, match=message):
            Config(**wrong)


def test_buffers_of_a_client_that_was_left_out_do_not_count(federation, settings):
    shape = federation.dataset.input_shape
    mlp = build("mlp", input_shape=shape, classes=10, hidden=(8,), seed=3)
    norm = torch.nn.Sequential(torch.nn.BatchNorm1d(64, momentum=1.0), mlp)
    chosen = settings(rounds=1, clients_per_round=20, batch_size=100)
    claims = attack("scaling", share=0.05, factor=1e4, samples=1e12)
    plain = run(method("fedavg"), federation, norm, chosen, attack=claims)
    kept = run(method("fedavg", guard="default"), federation, norm, chosen, attack=claims)
    honest = run(method("fedavg"), federation, norm, chosen)

    def distance(result):
        mean = "0.running_mean"
        return float((result.tensors[mean] - honest.tensors[mean]).norm())

    assert distance(kept) < distance(plain) / 3
