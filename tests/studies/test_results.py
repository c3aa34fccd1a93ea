"""Stored results are small, hold no machine's traces, and give the table again."""

from __future__ import annotations

import math
import re
import shutil
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedcraft.errors import ConfigError, DataError
from fedcraft.runs import Run, find_runs
from fedcraft.runs.select import group
from fedcraft.runs.study import write_study
from fedcraft.runs.summary import rows
from fedcraft.studies.plan import run_id
from fedcraft.studies.presets import preset
from fedcraft.studies.published import TABLES
from fedcraft.studies.reproduce import Reproduction, from_results, rerun, stored_runs
from fedcraft.studies.results import beside_published, collect, rank_correlation, stored
from fedcraft.studies.run import run
from fedcraft.studies.sweep import SweepResult
from tests.studies.conftest import write_result

ROOT = Path(__file__).parents[2]
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
    only = tuple(METHODS)
    again = Reproduction(chosen, stored(collect(runs, tmp_path / "stored")), only=only)
    fresh = Reproduction(chosen, SweepResult(tmp_path, runs), only=only)
    assert [row["method"] for row in fresh.rows()] == METHODS
    for ours, theirs in zip(fresh.rows(), again.rows(), strict=True):
        assert ours["method"] == theirs["method"]
        assert ours["client_lr"] == theirs["client_lr"]
        for metric in ("mean", "best10", "worst10", "std"):
            assert theirs[metric] == pytest.approx(ours[metric], abs=1e-5)


def test_stored_results_are_a_few_small_tables_that_name_no_machine(
    runs: tuple[Run, ...], data_root: Path, tmp_path: Path
) -> None:
    collect(runs, tmp_path / "stored")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {str(file.relative_to(tmp_path)) for file in files} == {
        *(f"stored/{name}.csv" for name in ("runs", "curves", "clients", "conflicts")),
        *(f"splits/{name}.csv" for name in ("classes", "labels", "owners")),
    }
    assert sum(file.stat().st_size for file in files) < 10_000 * len(runs)
    for file in files:
        text = file.read_text()
        assert str(data_root) not in text
        assert not re.search(r"/(tmp|root|home|work)/", text), file


def test_only_the_best_of_each_method_keeps_its_clients(
    runs: tuple[Run, ...], tmp_path: Path
) -> None:
    again = stored(collect(runs, tmp_path / "stored")).runs
    assert len(again) == len(runs)
    assert sum(bool(run.accuracies()) for run in again) == len(METHODS)
    labels = pd.read_csv(tmp_path / "splits" / "labels.csv")
    assert labels["split"].nunique() == 1, "all runs share one split"
    shown = next(run for run in again if run.accuracies())
    first = next(run for run in runs if run.directory.name == shown.directory.name)
    assert shown.labels().equals(first.labels())
    assert shown.clients()["name"].notna().all()
    assert shown.accuracies() == pytest.approx(first.accuracies(), abs=1e-6)
    with pytest.raises(DataError, match="a stored study has no models"):
        _ = shown.tensors


def test_stored_configuration_repeats_the_run(
    runs: tuple[Run, ...], data_root: Path, tmp_path: Path
) -> None:
    config = stored(collect(runs, tmp_path / "stored")).runs[0].config
    again = run(config, out=tmp_path / "again", data_root=str(data_root), workers=1)
    first = runs[0].directory / "model.safetensors"
    assert (again.directory / "model.safetensors").read_bytes() == first.read_bytes()


def test_what_is_stored_is_kept_when_more_is_collected(
    runs: tuple[Run, ...], tmp_path: Path
) -> None:
    collect(runs, tmp_path / "all")
    collect(runs[:3], tmp_path / "some")
    collect(runs[3:], tmp_path / "some")
    for name in ("runs.csv", "curves.csv"):
        ours, theirs = (pd.read_csv(tmp_path / study / name) for study in ("some", "all"))
        assert set(ours["run"]) == set(theirs["run"])


def test_runs_of_another_study_are_stored_once(runs: tuple[Run, ...], tmp_path: Path) -> None:
    collect(runs, tmp_path / "first")
    collect(stored(tmp_path / "first").runs[:2], tmp_path / "second")
    rows = pd.read_csv(tmp_path / "second" / "runs.csv")
    assert rows["stored_in"].tolist() == ["first", "first"]
    assert stored(tmp_path / "second").runs == stored(tmp_path / "first").runs[:2]
    shutil.rmtree(tmp_path / "first")
    with pytest.raises(DataError, match=r"should be stored in .*first, but is not"):
        stored(tmp_path / "second")


@pytest.mark.parametrize("name", ["runs.csv", "curves.csv", "clients.csv"])
def test_a_damaged_table_of_a_study_names_its_line(
    runs: tuple[Run, ...], tmp_path: Path, name: str
) -> None:
    path = collect(runs, tmp_path / "stored") / name
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:-1], lines[-1].partition(",")[0] + "\n"]))
    wanted = rf"{name}, line {len(lines)}: expected \d+ cells, found 1"
    with pytest.raises(DataError, match=wanted):
        _ = [(r.records, r.accuracies()) for r in stored(tmp_path / "stored").runs]


def test_values_read_back_as_they_were(tmp_path: Path) -> None:
    """Texts that look like numbers, lists, and names with commas and quotes."""
    keys = {
        "label": "007",
        "layers": "whole",
        "model_options": {"hidden": [5, 6], "name": '"a", b'},
    }
    (directory,) = (write_result(tmp_path / "run", 0.5, **keys).directory,)
    (again,) = stored(write_study(tmp_path / "stored", [Run(directory)])).runs
    first = Run(directory)
    assert again.values == first.values
    assert again.method == "007"
    assert again.records == first.records


def test_folder_of_a_study_is_found_by_the_report(runs: tuple[Run, ...], tmp_path: Path) -> None:
    collect(runs, tmp_path / "deep" / "stored")
    assert rows(group(find_runs(tmp_path), "test")) == rows(
        group(stored(tmp_path / "deep" / "stored").runs, "test")
    )


def test_reproduction_sets_the_paper_beside_ours(runs: tuple[Run, ...], tmp_path: Path) -> None:
    collect(runs, tmp_path / "table-femnist")
    made = from_results("table-femnist", tmp_path)
    craft = next(row for row in made.rows() if row["method"] == "craft")
    assert craft["mean_paper"] == 0.706
    assert craft["mean_difference"] == pytest.approx(craft["mean"] - 0.706)


def test_order_is_set_against_the_papers_only_after_the_papers_rounds(
    runs: tuple[Run, ...], tmp_path: Path
) -> None:
    collect(runs, tmp_path / "table-femnist")
    short = from_results("table-femnist", tmp_path, METHODS)
    assert {row["rounds"] for row in short.rows()} == {2}
    assert short.rank_correlation() is None
    path = tmp_path / "table-femnist" / "runs.csv"
    pd.read_csv(path).assign(**{"status.round": 500}).to_csv(path, index=False)
    whole = from_results("table-femnist", tmp_path, METHODS)
    assert -1 <= whole.rank_correlation() <= 1
    assert replace(whole, scale="small").rank_correlation() is None
    assert from_results("table-femnist", tmp_path, ["craft"]).rank_correlation() is None
    assert from_results("table-femnist", tmp_path).rank_correlation() is None, "methods are missing"


def test_stored_results_of_some_methods(runs: tuple[Run, ...], tmp_path: Path) -> None:
    collect(runs, tmp_path / "table-femnist")
    made = from_results("table-femnist", tmp_path, ["craft"])
    assert [row["method"] for row in made.rows()] == ["craft"]
    with pytest.raises(ConfigError, match="'craftt'"):
        from_results("table-femnist", tmp_path, ["craftt"])
    (missing,) = from_results("table-femnist", tmp_path, ["afl"]).rows()
    assert missing["state"] == "missing"
    assert missing["mean_paper"] == 0.548


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


def test_stored_runs_need_not_be_done_again(data_root: Path, tmp_path: Path) -> None:
    changes = {"data_root": str(data_root), "rounds": 1}
    made = rerun("table-femnist", "tiny", methods=["fedavg"], overrides=changes, out=tmp_path / "1")
    collect(made.result.runs, tmp_path / "table-femnist")
    known = stored_runs("table-femnist", tmp_path)
    methods = ["fedavg", "craft"]
    both = rerun(
        "table-femnist", "tiny", methods=methods, overrides=changes, out=tmp_path / "2", known=known
    )
    assert {folder.name.partition("-")[0] for folder in (tmp_path / "2").iterdir()} == {"craft"}
    assert [row["seeds"] for row in both.rows()] == [3, 3]
    assert both.rows()[0]["mean"] == pytest.approx(made.rows()[0]["mean"], abs=1e-5)
    assert stored_runs("robustness", tmp_path) == ()


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
        from_results("ablation-femnist", tmp_path)


def test_nothing_to_collect_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least one finished run"):
        collect([], tmp_path)


def test_stored_results_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside a folder that happens to be called results, and from a wheel."""
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    made = from_results("table-femnist")
    assert len(made.result.runs) == 196
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert wheel["targets"]["wheel"]["force-include"] == {"results": "fedcraft/results"}


def test_the_repository_stores_a_few_tables_per_study() -> None:
    """One table each of runs, curves, clients and conflicts; a file per benchmark; no copies."""
    folders: dict[Path, int] = Counter(p.parent for p in (ROOT / "results").rglob("*.*"))
    tables = {"runs.csv", "curves.csv", "clients.csv", "conflicts.csv"}
    studies = [folder for folder in folders if (folder / "curves.csv").is_file()]
    assert all({p.name for p in folder.iterdir()} <= tables for folder in studies)
    assert sum(folders.values()) - 4 * len(studies) <= 32, "benchmarks, theory, splits, digits"


def test_attacks_have_a_row_per_attack_share_and_method(data_root: Path, tmp_path: Path) -> None:
    changes = {"rounds": 1, "data_root": str(data_root), "clients": 10, "clients_per_round": 5}
    made = rerun("robustness", "tiny", methods=["craft"], overrides=changes, out=tmp_path)
    rows = made.attacks
    assert len({(row.attack, row.share, row.method) for row in rows}) == len(rows)
    assert rows[0].share == 0
    assert {row.attack for row in rows} >= {"none", "sign_flip", "backdoor"}
    guarded = [row for row in rows if row.method == "craft (guard default)"]
    assert all(row.honest_left_out is not None for row in guarded)
    assert len(made.rows()) == len(rows)  # one table row per problem and method
