"""Run directories are read whatever state they are in."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedcraft.errors import DataError
from fedcraft.report import load_runs
from fedcraft.runs import Run

MakeRun = Callable[..., Path]


def test_a_folder_is_searched_to_its_depth(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("deep/er/one")
    make_run("two")
    assert sorted(run.directory.name for run in load_runs(tmp_path)) == ["one", "two"]


def test_a_run_named_twice_is_read_once(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run("one")
    (tmp_path / "again").symlink_to(path)
    assert len(load_runs([path, tmp_path, path, str(path), tmp_path / "again"])) == 1


def test_nothing_found_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no config\.toml was found .*" + tmp_path.name):
        load_runs(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        load_runs(tmp_path / "absent")
    with pytest.raises(DataError, match="an empty list"):
        load_runs([])


def test_a_sweep_file_is_no_run(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("one")
    (tmp_path / "config.toml").write_text("rounds = [1, 2]\n")
    assert [run.directory.name for run in load_runs(tmp_path)] == ["one"]


def test_a_broken_config_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("method = \n")
    with pytest.raises(DataError, match=r"config\.toml should be TOML"):
        load_runs(tmp_path)


def test_a_torn_last_line_is_ignored(make_run: MakeRun) -> None:
    path = make_run("one", rounds=20)
    whole = Run(path)
    for name in ("metrics.jsonl", "clients.csv", "conflicts.csv"):
        content = (path / name).read_bytes()
        (path / name).write_bytes(content + content.splitlines()[-1][:9])
    torn = Run(path)
    assert torn.records == whole.records
    assert torn.accuracies() == whole.accuracies()
    assert torn.conflicts().equals(whole.conflicts())


@pytest.mark.parametrize("cut", [1, 40, 333, 5000])
def test_any_cut_of_the_tables_can_be_read(make_run: MakeRun, cut: int) -> None:
    path = make_run("one", rounds=20, state="running")
    for name in ("metrics.jsonl", "clients.csv", "conflicts.csv"):
        os.truncate(path / name, max(0, (path / name).stat().st_size - cut))
    run = Run(path)
    assert 0 < len(run.records) <= 21
    assert len(run.accuracies()) == 100


@pytest.mark.parametrize("name", ["status.json", "environment.json", "metrics.jsonl"])
def test_damage_is_an_error_that_names_the_file(make_run: MakeRun, name: str) -> None:
    path = make_run("one", rounds=5)
    content = (path / name).read_text()
    (path / name).write_text(content.replace("{", "", 1))
    run = Run(path)
    with pytest.raises(DataError, match=rf"{re.escape(str(path / name))}.*leave out this run"):
        _ = (run.status, run.environment, run.records)


def test_an_evaluation_being_written_is_not_shown_yet(make_run: MakeRun) -> None:
    path = make_run("one", rounds=20, state="running")
    before = Run(path).accuracies()
    with (path / "clients.csv").open("a") as stream:
        stream.write("25,0,test,accuracy,0.5,40\n")
    assert Run(path).accuracies() == before


def test_a_run_with_nothing_but_its_config_can_be_read(make_run: MakeRun) -> None:
    path = make_run("one")
    for file in path.iterdir():
        if file.name != "config.toml":
            file.unlink()
    run = Run(path)
    assert (run.state, run.last_round, run.records) == ("new", 0, [])
    assert (run.accuracies(), run.evaluations, run.evaluation) == ({}, {}, {})
    with pytest.raises(DataError, match=r"labels\.csv does not exist; the run is new"):
        run.labels()
    assert run.split_hash is None


def test_a_round_written_again_after_a_resume_counts_once(make_run: MakeRun) -> None:
    path = make_run("one", rounds=20)
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"round": 20, "evaluation": {"mean": 0.875}}) + "\n")
    run = Run(path)
    assert len(run.records) == 21
    assert run.final("mean") == 0.875


def test_the_end_of_a_large_client_table_is_read_without_its_beginning(make_run: MakeRun) -> None:
    path = make_run("one", clients=400, rounds=200)
    assert (path / "clients.csv").stat().st_size > 2**19
    values = Run(path).accuracies()
    last = [
        float(line.split(",")[4])
        for line in (path / "clients.csv").read_text().splitlines()
        if line.startswith("200,") and ",test,accuracy," in line
    ]
    assert list(values.values()) == last
    with (path / "clients.csv").open("a") as stream:
        stream.write("not a row at all\n")
    with pytest.raises(DataError, match=r"clients\.csv is damaged: b'not a row at all"):
        Run(path).accuracies()


def test_a_label_names_the_run(make_run: MakeRun) -> None:
    path = make_run("one", method="craft")
    with (path / "config.toml").open("a") as stream:
        stream.write('label = "without layers"\n')
    assert Run(path).method == "without layers"


@pytest.mark.parametrize("label", ["craft", "CRAFT", " Craft", "craft, FAIR variant"])
def test_a_label_cannot_pass_for_another_method(make_run: MakeRun, label: str) -> None:
    assert Run(make_run("one", {"label": label}, method="fedavg")).method == f"{label} (fedavg)"


@pytest.mark.parametrize(
    ("method", "keys", "name"),
    [("FedAvg", {}, "fedavg"), ("ditto", {"aggregator.name": "craft"}, "ditto+craft")],
)
def test_a_run_without_a_label_is_never_taken_for_another(
    make_run: MakeRun, method: str, keys: dict[str, Any], name: str
) -> None:
    assert Run(make_run("one", keys, method=method)).method == name


@pytest.mark.parametrize("label", ["craft", "CRAFT", "craft-uniform"])
def test_a_label_may_be_the_name_of_its_own_method(make_run: MakeRun, label: str) -> None:
    assert Run(make_run("one", {"label": label}, method="craft")).method == label


def test_two_hundred_runs_are_read_in_seconds(make_run: MakeRun, tmp_path: Path) -> None:
    first = make_run("run-0", rounds=100)
    for i in range(1, 200):
        shutil.copytree(first, tmp_path / f"run-{i}")
    begin = time.process_time()
    runs = load_runs(tmp_path)
    means = [run.final("mean") for run in runs]
    assert len(set(means)) == 1
    assert len(runs) == 200
    assert time.process_time() - begin < 8.0
