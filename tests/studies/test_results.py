"""Stored results are small, hold no machine's traces, and give the table again."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedcraft.errors import ConfigError, DataError
from fedcraft.runs import Run
from fedcraft.studies.plan import run_id
from fedcraft.studies.presets import preset
from fedcraft.studies.published import TABLES
from fedcraft.studies.reproduce import Reproduction, from_results, rerun
from fedcraft.studies.results import beside_published, collect, rank_correlation, stored
from fedcraft.studies.run import run
from fedcraft.studies.sweep import SweepResult

METHODS = ["fedavg", "fedavgm", "craft"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> tuple[Run, ...]:
    """The tiny FEMNIST table, three methods at two rates each."""
    folder = tmp_path_factory.mktemp("runs")
    plan = preset("table-femnist").plan("tiny", METHODS, data_root=str(data_root), workers=1)
    rates = {"client_lr": [0.05, 0.1], "server_lr": [0.1]}
    configs = type(plan)(plan.base, rates, plan.variants).configs()
    return tuple(run(config, out=folder / run_id(config)) for config in configs)


def test_stored_results_give_the_same_table(runs: tuple[Run, ...], tmp_path: Path) -> None:
    chosen = preset("table-femnist")
    again = Reproduction(chosen, stored(collect(runs, tmp_path / "stored")))
    fresh = Reproduction(chosen, SweepResult(tmp_path, runs))
    assert [row["method"] for row in fresh.rows()] == METHODS
    for ours, theirs in zip(fresh.rows(), again.rows(), strict=True):
        assert ours["method"] == theirs["method"]
        assert ours["client_lr"] == theirs["client_lr"]
        for metric in ("mean", "best10", "worst10", "std"):
            assert theirs[metric] == pytest.approx(ours[metric], abs=1e-5)


def test_stored_results_are_small_and_name_no_machine(
    runs: tuple[Run, ...], data_root: Path, tmp_path: Path
) -> None:
    folder = collect(runs, tmp_path / "stored")
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert {file.name for file in files} == {
        "config.toml",
        "status.json",
        "metrics.jsonl",
        "clients.csv",
        "conflicts.csv",
        "environment.json",
        "labels.csv",
        "owners.csv",
    }
    assert sum(file.stat().st_size for file in files) < 10_000 * len(runs)
    for file in files:
        text = file.read_text()
        assert str(data_root) not in text
        assert not re.search(r"/(tmp|root|home|work)/", text), file


def test_only_the_best_of_each_method_keeps_its_clients(
    runs: tuple[Run, ...], tmp_path: Path
) -> None:
    folder = collect(runs, tmp_path / "stored")
    assert len(list(folder.glob("*/clients.csv"))) == len(METHODS)
    assert len(list(folder.glob("*/owners.csv"))) == len(METHODS)
    assert len(list(folder.glob("*/labels.csv"))) == 1, "all runs share one split"
    assert len(list(folder.glob("*/config.toml"))) == len(runs)


def test_stored_configuration_repeats_the_run(
    runs: tuple[Run, ...], data_root: Path, tmp_path: Path
) -> None:
    folder = collect(runs, tmp_path / "stored")
    name = runs[0].directory.name
    again = run(folder / name, out=tmp_path / "again", data_root=str(data_root), workers=1)
    first = runs[0].directory / "model.safetensors"
    assert (again.directory / "model.safetensors").read_bytes() == first.read_bytes()


def test_reproduction_sets_the_paper_beside_ours(runs: tuple[Run, ...], tmp_path: Path) -> None:
    collect(runs, tmp_path / "table-femnist")
    made = from_results("table-femnist", tmp_path)
    rows = {row["method"]: row for row in made.rows()}
    assert rows["craft"]["mean_paper"] == 0.706
    assert rows["craft"]["mean_difference"] == pytest.approx(rows["craft"]["mean"] - 0.706)


def test_order_is_set_against_the_papers_only_after_the_papers_rounds(
    runs: tuple[Run, ...], tmp_path: Path
) -> None:
    collect(runs, tmp_path / "table-femnist")
    short = from_results("table-femnist", tmp_path)
    assert {row["rounds"] for row in short.rows()} == {2}
    assert short.rank_correlation() is None
    for status in tmp_path.rglob("status.json"):
        status.write_text(status.read_text().replace('"round": 2', '"round": 500'))
    whole = from_results("table-femnist", tmp_path)
    assert -1 <= whole.rank_correlation() <= 1
    assert replace(whole, scale="small").rank_correlation() is None
    assert from_results("table-femnist", tmp_path, ["craft"]).rank_correlation() is None


def test_stored_results_of_some_methods(runs: tuple[Run, ...], tmp_path: Path) -> None:
    collect(runs, tmp_path / "table-femnist")
    made = from_results("table-femnist", tmp_path, ["craft"])
    assert [row["method"] for row in made.rows()] == ["craft"]
    with pytest.raises(ConfigError, match="'craftt'"):
        from_results("table-femnist", tmp_path, ["craftt"])
    with pytest.raises(DataError, match="holds no runs of afl"):
        from_results("table-femnist", tmp_path, ["afl"])


def test_the_best_setting_is_chosen_on_one_seed_and_repeated_with_more(
    data_root: Path, tmp_path: Path
) -> None:
    changes = {"data_root": str(data_root), "rounds": 1}
    methods = ["fedavg", "craft"]
    made = rerun("table-femnist", "tiny", methods=methods, overrides=changes, out=tmp_path)
    assert [run.config.seed for run in made.result.runs] == [77, 77, 78, 79, 78, 79]
    assert [row["seeds"] for row in made.rows()] == [3, 3]
    again = stored(collect(made.result.runs, tmp_path / "stored"))
    assert {name: len(s.runs) for name, s in again.best().items()} == {"fedavg": 3, "craft": 3}


def test_rank_correlation_of_the_papers_own_numbers_is_one() -> None:
    rows = [{"method": name, "mean": row.mean} for name, row in TABLES["femnist-mlp"].items()]
    assert rank_correlation(beside_published(rows, "femnist-mlp")) == pytest.approx(1.0)
    upside_down = [{**row, "mean": -row["mean"]} for row in rows]
    assert rank_correlation(beside_published(upside_down, "femnist-mlp")) == pytest.approx(-1.0)
    assert math.isnan(rank_correlation(beside_published(rows[:2], "femnist-mlp")))


def test_method_the_paper_does_not_have_stands_alone() -> None:
    (row,) = beside_published([{"method": "craft-fair", "mean": 0.7}], "femnist-mlp")
    assert math.isnan(row["mean_paper"])


def test_missing_results_say_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--rerun.*--scale small"):
        from_results("table-femnist", tmp_path)


def test_nothing_to_collect_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least one finished run"):
        collect([], tmp_path)
