"""A run finds its data again from any folder, under the name it always had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedcraft.config.schema import Config
from fedcraft.config.toml import config_text, load_config
from fedcraft.runs import Run
from fedcraft.studies.plan import Plan, run_id
from fedcraft.studies.results import collect
from fedcraft.studies.run import resume, run
from fedcraft.studies.sweep import sweep
from tests.studies.conftest import prepare

SHORT: dict[str, Any] = {"rounds": 1, "executor": "serial", "partition": "iid", "clients": 4}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to go to; we are in one with a table."""
    rows = [f"ward-{k % 4},{k % 7}.5,{k % 2}" for k in range(80)]
    (tmp_path / "data").mkdir()
    table = "\n".join(["ward,x,label", *rows]) + "\n"
    (tmp_path / "data" / "own.csv").write_text(table, encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "elsewhere"


@pytest.mark.parametrize(
    "given",
    [
        {"dataset": "data/own.csv", "data_options": {"features": ["x"]}},
        {"dataset": "data/own.csv", "data_root": "nowhere", "data_options": {"features": ["x"]}},
        {"dataset": "own.csv", "data_root": "data", "data_options": {"client": "ward"}},
    ],
)
def test_run_on_a_relative_table_is_resumed_from_another_folder(
    given: dict[str, Any], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(**(SHORT | given))
    directory = prepare(config, Path("a")).absolute()
    monkeypatch.chdir(elsewhere)
    (elsewhere / "data").mkdir()
    (elsewhere / "data" / "own.csv").write_text("another table\n", encoding="utf-8")
    result = resume(directory)
    assert result.state == "finished"
    assert result.config.dataset == given["dataset"]
    assert run_id(result.config) == run_id(config)
    assert run(directory, out=elsewhere / "again").state == "finished"


def test_sweep_on_a_relative_table_knows_its_runs_again(elsewhere: Path) -> None:
    given = SHORT | {"dataset": "data/own.csv", "data_options": {"features": ["x"]}}
    plan = Plan(given, {"seed": [1]})
    (first,) = sweep(plan, out="s", jobs=1).runs
    (again,) = sweep(plan, out="s", jobs=1).runs
    assert first.directory == again.directory
    assert first.directory.name == run_id(Config(**given, seed=1, workers=1))
    stored = collect([first], "stored")
    assert all(str(Path.cwd()) not in file.read_text() for file in stored.iterdir())


def test_owners_are_counted_in_the_table_of_the_data_root(elsewhere: Path) -> None:
    given = {"dataset": "own.csv", "data_root": "data", "data_options": {"client": "ward"}}
    assert load_config(given).clients == 4


def test_relative_folder_of_data_is_written_as_it_is_from_everywhere(elsewhere: Path) -> None:
    Path("config.toml").write_bytes(config_text(Config(data_root="data")))
    assert load_config("config.toml").data_root == str(Path("data").absolute())
    Path("config.toml").write_bytes(config_text(Config()))
    assert load_config("config.toml").data_root is None


def test_folder_of_a_run_may_be_at_home(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(elsewhere))
    run(SHORT, out="~/a")
    assert load_config("~/a") == Run(elsewhere / "a").config
    assert run(SHORT, out="~nobody-here/a").directory == Path("~nobody-here/a")
    assert sweep(Plan({}, {"seed": [1]}), out="~/s", runner=lambda *_: []).folder == elsewhere / "s"
    (elsewhere / "grid.toml").write_text("[grid]\nseed = [1, 2]\n", encoding="utf-8")
    assert Plan.read("~/grid.toml").grid == {"seed": [1, 2]}
