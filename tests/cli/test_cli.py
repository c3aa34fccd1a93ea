"""The command line: what it prints, where, and with which exit code."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fedcraft import __version__
from fedcraft.cli.app import app
from fedcraft.config.schema import Config
from fedcraft.engine import Interrupted
from fedcraft.studies.compare import DEFAULT_METHODS

TINY = ["rounds=3", "clients=10", "clients_per_round=4", "evaluate_every=3", "executor=serial"]
COMMANDS = [
    *("run", "resume", "compare", "sweep", "reproduce", "report", "table", "verify", "methods"),
    *("bench", "data list", "data get", "data show", "config default", "config schema"),
]


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def bad_configs() -> list[Any]:
    path = Path(__file__).parents[1] / "config" / "bad_configs.py"
    spec = importlib.util.spec_from_file_location("cli_bad_configs", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.BAD_CONFIGS


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "a"
    assert call("run", *TINY, "--out", str(out), "--quiet").exit_code == 0
    return out


def test_verify_names_damage_and_exits_with_1(a_run: Path, tmp_path: Path) -> None:
    shutil.copytree(a_run, tmp_path / "copy")
    assert call("verify", str(tmp_path)).stdout == f"{tmp_path / 'copy'}: intact\n"
    (tmp_path / "copy" / "config.toml").write_text('method = "fedavg"\n')
    result = call("verify", str(tmp_path))
    assert result.exit_code == 1
    assert "copy: damaged: config.toml is not what the run wrote" in result.stdout
    (damage,) = json.loads(call("verify", str(tmp_path), "--json").stdout).values()
    assert [entry["file"] for entry in damage] == ["config.toml"]
    refused = call("resume", str(tmp_path / "copy"))
    assert refused.exit_code == 2
    assert "fedcraft verify --accept" in refused.stderr
    assert call("verify", str(tmp_path), "--accept").exit_code == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = call(*command.split(), "--help")
    assert result.exit_code == 0
    assert "Usage" in result.stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if " " not in c and c != "methods"])
def test_every_command_with_arguments_gives_an_example(command: str) -> None:
    shown = " ".join(call(command, "--help").stdout.split())
    assert "Example" in shown
    assert shown.count(f"fedcraft {command}") >= 2


def test_a_mistyped_command_is_corrected_once() -> None:
    assert call("runn").stderr.count("'run'") == 1


@pytest.mark.parametrize(
    ("command", "explained"),
    [
        ("run", "A TOML file or an earlier run"),
        ("resume", "The run directory."),
        ("sweep", "TOML file with a [grid] table."),
        ("reproduce", "The experiment; none lists them."),
        ("report", "Run directories or their folders."),
        ("data get", "Name of a data set."),
        ("data show", "A data set and how to divide it."),
    ],
)
def test_help_explains_arguments(command: str, explained: str) -> None:
    shown = call(*command.split(), "--help").stdout.replace("│", "")
    assert explained in " ".join(shown.split())


def test_help_names_the_methods_that_compare_runs() -> None:
    """The lines of a box break anywhere, so blanks and borders are left out."""
    compare, all_commands = (
        "".join(call(*words).stdout.replace("│", "").split())
        for words in (["compare", "--help"], ["--help"])
    )
    assert f"({','.join(DEFAULT_METHODS)}ifnoneisnamed)" in compare
    number = {4: "four", 5: "five", 6: "six"}[len(DEFAULT_METHODS)]
    assert f"{number}methods" in compare
    assert f"{number}methods" in all_commands


def test_version() -> None:
    assert call("--version").stdout.strip() == f"fedcraft {__version__}"


def test_run_prints_the_table_and_how_to_get_a_page(here: Path) -> None:
    result = call("run", *TINY, "--out", "a")
    assert result.exit_code == 0
    assert "CRAFT" in result.stdout
    assert "Worst 10 %" in result.stdout
    assert "fedcraft report a" in result.stderr
    assert tomllib.loads((here / "a/config.toml").read_text())["rounds"] == 3


def test_printed_commands_can_be_pasted(here: Path) -> None:
    assert "fedcraft report 'my run'" in call("run", *TINY, "--out", "my run").stderr
    assert "fedcraft resume 'my run'" in call("run", *TINY, "--out", "my run").stderr


def test_interrupted_run_says_how_to_go_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise Interrupted(3, Path("my run"))

    monkeypatch.setattr("fedcraft.studies.run.run", interrupted)
    result = call("run", *TINY)
    assert result.exit_code == 130
    assert "Continue with:  fedcraft resume 'my run'" in result.stderr


def test_home_is_found_in_every_path(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here / "home"))
    (here / "home").mkdir()
    table = "\n".join(["x,label", *(f"{k % 7}.5,{k % 2}" for k in range(300))])
    (here / "home" / "own.csv").write_text(table + "\n", encoding="utf-8")
    words = ["dataset=~/own.csv", "data_root=~/data", "rounds=1", "clients=5", "executor=serial"]
    result = call("run", *words, "--out=~/a", "-q")
    assert result.exit_code == 0, result.stderr
    written = tomllib.loads((here / "home/a/config.toml").read_text())
    assert written["dataset"] == str(here / "home/own.csv")
    assert written["data_root"] == str(here / "home/data")
    call("report", str(here / "home/a"), "--out=~/page.html")
    assert (here / "home/page.html").is_file()
    monkeypatch.setenv("FEDCRAFT_OFFLINE", "1")
    for words in (["data", "get", "cifar10", "--root"], ["reproduce", "history", "--results"]):
        said = call(*words, "~/nothing").stderr.replace("\n", "")
        assert str(here / "home/nothing") in said


def test_quiet_run_prints_nothing(here: Path) -> None:
    result = call("run", *TINY, "--out", "a", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_a_run_continues_when_nothing_reads_its_progress(here: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "fedcraft", "run", *TINY, "--out", "a"]
    done = subprocess.run(command, stderr=writer, stdout=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, b"CRAFT" in done.stdout) == (0, True)
    assert json.loads((here / "a/status.json").read_text())["state"] == "finished"


def test_json_of_a_run_is_json_and_nothing_else(here: Path) -> None:
    result = call("run", *TINY, "--out", "a", "--json")
    told = json.loads(result.stdout)
    assert told["state"] == "finished"
    assert told["method"] == "craft"
    assert 0 <= told["evaluation"]["mean"] <= 1


def test_run_directory_as_configuration_gives_the_same_model(a_run: Path, tmp_path: Path) -> None:
    again = tmp_path / "b"
    assert call("run", str(a_run / "config.toml"), "--out", str(again), "-q").exit_code == 0
    name = "model.safetensors"
    assert (again / name).read_bytes() == (a_run / name).read_bytes()


def test_resume_of_a_finished_run_shows_it(a_run: Path) -> None:
    result = call("resume", str(a_run), "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["state"] == "finished"


@pytest.mark.parametrize("bad", bad_configs(), ids=lambda bad: bad.name)
def test_bad_configuration_is_one_message_and_exit_code_2(bad: Any, here: Path) -> None:
    (here / "mine.toml").write_text(bad.text, encoding="utf-8")
    result = call("run", "mine.toml", "--out", "a")
    assert result.exit_code == 2
    assert result.stdout == ""
    message = " ".join(result.stderr.split())
    assert message.count("error:") == 1
    assert "mine.toml" in message
    assert bad.key in message
    assert bad.fix in message
    assert "Traceback" not in message
    assert not (here / "a").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run", "client_rl=0.1"], "client_lr"),
        (["run", "a.toml", "b.toml"], "one configuration file"),
        (["run", "nowhere.toml"], "does not exist"),
        (["run", "rounds=1", "clients=1000"], "clients"),
        (["compare", "fedavgg"], "fedavg"),
        (["reproduce", "table-femnits"], "table-femnist"),
        (["reproduce", "table-femnist", "--results", "nowhere"], "--rerun"),
        (["report", "nowhere"], "nowhere"),
        (["data", "get", "cifar11"], "cifar10"),
        (["run", "out=foo"], "out"),
        (["run", "config=mine.toml"], "config"),
        (["reproduce", "table-femnist", "scale=small", "--scale", "tiny"], "scale"),
        (["reproduce", "table-femnist", "client_lr=0.1"], "--rerun"),
        (["reproduce", "table-femnist", "--store"], "--rerun"),
        (["reproduce", "table-femnist", "--scale", "tiny", "--store"], "--results"),
        (["reproduce", "table-femnist", "-m", "craftt"], "craft"),
    ],
)
def test_what_cannot_start_is_reported_with_exit_code_2(
    words: list[str], named: str, here: Path
) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert named in " ".join(result.stderr.split())


def test_run_that_fails_on_the_way_has_exit_code_1(here: Path) -> None:
    result = call("run", *TINY, "method=fedavg", "client_lr=900", "rounds=9", "--out", "a", "-q")
    assert result.exit_code == 1
    assert "NaN or Inf" in result.stderr


def test_file_that_cannot_be_written_is_named_in_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "taken")

    monkeypatch.setattr("fedcraft.engine.run", refuse)
    result = call("run", *TINY, "--out", "taken")
    assert result.exit_code == 1
    assert result.stderr.strip().startswith("error: taken: Permission denied. Give another folder")
    assert isinstance(call("--debug", "run", *TINY, "--out", "taken").exception, PermissionError)


def test_full_disk_is_reported_in_one_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedcraft.atomic.os.fsync", full)
    result = call("run", *TINY, "--out", "a")
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("label", ["a[/b]", "craft [beta]", "[bold]x", ":warning:"])
def test_labels_and_paths_are_never_markup(label: str, here: Path) -> None:
    result = call("run", *TINY, f"label={label}", "--out", "x[two]")
    assert result.exit_code == 0, result.stderr
    assert label in result.stdout
    assert "finished: x[two]" in result.stderr
    written = call("report", "x[two]", "-o", "page[red].html")
    assert written.stdout.strip() == "Report: page[red].html"


def test_debug_shows_the_traceback(here: Path) -> None:
    result = call("--debug", "run", "client_rl=1")
    assert type(result.exception).__name__ == "ConfigError"


def test_config_default_is_a_configuration() -> None:
    assert Config.model_validate(tomllib.loads(call("config", "default").stdout)) == Config()


def test_config_schema_is_the_schema() -> None:
    assert json.loads(call("config", "schema").stdout)["properties"].keys() == set(
        Config.model_fields
    )


def test_methods_lists_all_of_them() -> None:
    from fedcraft.methods import methods

    told = json.loads(call("methods", "--json").stdout)
    assert [row["name"] for row in told] == [row.name for row in methods()]
    assert "craft" in call("methods").stdout


def test_data_list_and_get_and_show(here: Path) -> None:
    assert {row["name"] for row in json.loads(call("data", "list", "--json").stdout)} >= {"digits"}
    assert "1,797 samples" in call("data", "get", "digits").stdout
    facts = json.loads(call("data", "show", "digits", "clients=20", "--json").stdout)
    assert facts["clients"] == 20
    assert len(facts["split hash"]) == 64
    shown = call("data", "show", "digits", "clients=20").stdout
    assert " 16, 70.5, 179 " in shown, "numbers, not a list of Python"
    assert "─" not in shown, "and no rule below headings that are empty"


def test_reproduce_without_a_name_lists_the_experiments() -> None:
    told = json.loads(call("reproduce", "--json").stdout)
    assert "table-femnist" in {row["name"] for row in told}


@pytest.mark.parametrize("format", ["md", "latex", "csv"])
def test_table_of_runs(a_run: Path, format: str) -> None:
    result = call("table", str(a_run), "--format", format)
    assert result.exit_code == 0
    assert "CRAFT" in result.stdout
    assert result.stdout.endswith("\n")
    assert not result.stdout.endswith("\n\n"), "a program would read an empty row"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--format", "pdf"], "--figures"), (["--figures", "drawn", "--format", "gif"], "gif")],
)
def test_report_checks_its_formats_before_it_writes(
    a_run: Path, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    page = tmp_path / "page.html"
    result = call("report", str(a_run), "-o", str(page), *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert not page.exists()


def test_report_is_written_where_asked(a_run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = call("report", str(a_run), "-o", str(page))
    assert result.exit_code == 0
    assert page.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")


def test_bench_times_each_executor() -> None:
    rows = json.loads(call("bench", *TINY[:4], "workers=2", "--json").stdout)
    assert [row["executor"] for row in rows] == ["serial", "processes", "vectorized"]
    assert all(row["train"] > 0 for row in rows)


def test_bench_that_no_executor_can_do_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = call("bench", *TINY[:4], "device=cuda")
    assert result.exit_code == 2
    assert "cuda" in result.stderr


def test_completion_knows_keys_and_names() -> None:
    from fedcraft.cli.complete import complete_experiment, complete_method, complete_override

    assert "client_lr=" in list(complete_override("client_"))
    assert list(complete_override("aggre")) == ["aggregator."]
    assert list(complete_override("method=fedavg")) == ["method=fedavg", "method=fedavgm"]
    assert list(complete_override("executor=s")) == ["executor=serial"]
    assert "craft" in list(complete_method("cr"))
    assert "history" in list(complete_experiment("h"))
