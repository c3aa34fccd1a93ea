"""Comparisons, sweeps and reproductions from the command line, end to end."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from fedcraft.cli.app import app
from fedcraft.cli.outcome import finish
from fedcraft.cli.reproduce import finish_reproduction
from fedcraft.cli.tables import score_table
from fedcraft.runs import Run, find_runs
from fedcraft.studies.plan import run_id
from fedcraft.studies.presets import METHODS, preset
from fedcraft.studies.reproduce import Reproduction
from fedcraft.studies.results import collect
from fedcraft.studies.run import run
from fedcraft.studies.sweep import SweepResult

TINY = ["rounds=3", "clients=10", "clients_per_round=4", "evaluate_every=3"]


def call(*words: str):
    return CliRunner().invoke(app, list(words))


def data_makers():
    path = Path(__file__).parents[1] / "studies" / "conftest.py"
    spec = importlib.util.spec_from_file_location("experiment_data", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.mark.slow
def test_compare_prints_table_and_report_and_does_nothing_twice(here: Path) -> None:
    words = ["compare", "craft", "fedavg", *TINY, "client_lr=0.1", "--repeats", "1"]
    first = call(*words)
    assert first.exit_code == 0, first.stderr
    for text in ("CRAFT", "FedAvg", "Mean", "Best 10 %", "Worst 10 %", "Std", "Conflicts"):
        assert text in first.stdout
    assert "validation" in first.stdout
    assert "over 2 seeds" in first.stdout
    assert (here / "runs/compare/report.html").is_file()
    second = call(*words, "--json")
    told = json.loads(second.stdout)
    assert set(told["tables"]) == {"validation", "test"}
    assert set(told["runs"].values()) == {"finished"}
    assert [row["seeds"] for row in told["tables"]["validation"]] == [2, 2]
    assert 8 + 2 <= len(told["runs"]) <= 8 + 4, "one more seed for what validation or test chose"
    third = call(*words)
    assert "8 of 8 runs are already done" in third.stderr


def test_estimates_train_nothing(here: Path) -> None:
    told = json.loads(call("compare", *TINY, "--estimate", "--json").stdout)
    assert told["runs"] == 60 + 2 * 5, "the grid, and two more seeds of each method"
    assert told["seconds"] > 0
    assert not (here / "runs").exists()


@pytest.mark.slow
def test_failed_runs_are_reported_at_the_end_with_exit_code_1(here: Path) -> None:
    (here / "mine.toml").write_text(
        'method = "fedavg"\nrounds = 8\nclients = 10\nclients_per_round = 4\n'
        "[grid]\nclient_lr = [0.1, 900.0]\n"
    )
    result = call("sweep", "mine.toml", "--no-report", "--jobs", "1")
    assert result.exit_code == 1
    assert "1 of 2 runs failed" in result.stderr
    assert "FedAvg" in result.stdout
    assert "as the paper does" in result.stdout


def test_sweep_without_a_grid_is_reported(here: Path) -> None:
    (here / "mine.toml").write_text("rounds = 2\n")
    result = call("sweep", "mine.toml")
    assert result.exit_code == 2
    assert "[grid]" in result.stderr


@pytest.mark.slow
def test_reproduce_table_femnist_at_tiny_scale_gives_table_and_figures(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_makers().write_femnist(here / "data")
    monkeypatch.setenv("FEDCRAFT_DATA", str(here / "data"))
    monkeypatch.setenv("FEDCRAFT_CACHE", str(here / "cache"))
    words = ["--scale", "tiny", "--out", "out", "--store", "--results", "kept"]
    result = call("reproduce", "table-femnist", *words)
    assert result.exit_code == 0, result.stderr
    assert len(find_runs("kept/table-femnist")) == 3 * len(METHODS), "three seeds"
    assert "Rank correlation" not in result.stdout, "two rounds are not the paper's"
    assert "Rounds" in result.stdout
    assert "0.706" in result.stdout
    out = here / "out"
    assert len(list(out.glob("*/config.toml"))) == 3 * len(METHODS)
    assert all(Run(path.parent).done for path in out.glob("*/config.toml"))
    assert (out / "report.html").is_file()
    names = {file.stem for file in (out / "figures").iterdir()}
    assert any("convergence" in name for name in names)
    assert any("distribution" in name for name in names)
    for suffix, text in (("md", "CRAFT"), ("tex", "toprule"), ("csv", "craft")):
        assert text in (out / f"table.{suffix}").read_text()


def test_reproduce_from_stored_results_trains_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_makers().write_femnist(here / "data")
    monkeypatch.setenv("FEDCRAFT_CACHE", str(here / "cache"))
    changes = {"data_root": str(here / "data"), "executor": "serial"}
    configs = preset("table-femnist").plan("tiny", **changes).configs()
    runs = [run(config, out=here / "trained" / run_id(config)) for config in configs]
    collect(runs, here / "results" / "table-femnist")
    shutil.rmtree(here / "data")
    shutil.rmtree(here / "trained")
    result = call("reproduce", "table-femnist", "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert [row["method"] for row in told["table"]] == list(METHODS)
    assert told["rank_correlation"] is None
    assert (here / told["files"]["table"]).is_file()
    assert any("convergence" in name for name in told["files"]["figures"])
    some = json.loads(call("reproduce", "table-femnist", "-m", "craft", "--json").stdout)
    assert [row["method"] for row in some["table"]] == ["craft"]


def test_missing_runs_are_counted_and_stored_ones_are_announced(here: Path) -> None:
    changes = {"data_root": str(here / "data"), "executor": "serial", "workers": 1}
    config = preset("table-femnist").plan("tiny", ["craft"], **changes).configs()[0]
    data_makers().write_femnist(here / "data")
    kept = data_makers().write_result(here / "runs", 0.7, **config.given())
    collect([kept], here / "kept" / "table-femnist")
    words = ["--scale", "tiny", "--missing", "--results", "kept", "-m", "craft", "-m", "fedavg"]
    told = call("reproduce", "table-femnist", *words, "--estimate", f"data_root={here / 'data'}")
    assert told.exit_code == 0, told.stderr
    said = " ".join(told.stderr.split())  # lines are as long as the terminal allows
    assert "1 of 2 runs are stored and kept, whichever version" in said
    assert "3 runs from scratch" in said, "one of the grid, repeated with two more seeds"


def test_files_of_a_reproduction_are_judged_as_its_table_is(here: Path) -> None:
    keys = {"method": "craft", "dataset": "femnist", "validation_fraction": 0.2}
    folder = here / "results" / "table-femnist"
    write = data_makers().write_result
    runs = [
        write(here / "runs", mean, validation=validation, client_lr=rate, **keys)
        for mean, validation, rate in ((0.9, 0.1, 0.1), (0.8, 0.2, 0.2))
    ]
    collect(runs, folder)
    result = call("reproduce", "table-femnist", "--out", "out")
    assert result.exit_code == 0, result.stderr
    assert "0.900" in result.stdout
    assert "0.900" in (here / "out" / "table.md").read_text()
    assert "0.800" not in (here / "out" / "table.md").read_text()


def test_what_is_missing_of_a_table_is_marked_as_missing(here: Path) -> None:
    """Runs of another stored experiment stand in for it; a method without runs has no numbers."""
    write = data_makers().write_result
    keys = {"dataset": "cifar10", "model": "cnn", "client_lr": 0.05, "server_lr": 0.1}
    collect(
        [write(here / "runs", 0.7, method="craft", **keys)], here / "results/curves-cifar10-cnn"
    )
    result = call("reproduce", "table-cifar10-cnn", "--out", "out")
    assert result.exit_code == 0, result.stderr
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert "as far as curves-cifar10-cnn has it" in result.stdout
    assert "0.700" in lines["CRAFT"]
    assert "0.722" in lines["CRAFT"]
    assert "missing" not in lines["CRAFT"]
    assert "0.636" in lines["FedAvg"]
    assert "missing" in lines["FedAvg"]
    nothing = call("reproduce", "table-cifar10-resnet56")
    assert nothing.exit_code == 0, nothing.stderr
    assert nothing.stdout.count("missing") == len(METHODS)
    assert "No runs of table-cifar10-resnet56 are stored" in nothing.stdout
    unknown = call("reproduce", "ablation-femnist", "--results", "results")
    assert unknown.exit_code == 2
    assert "--rerun" in unknown.stderr


def test_every_problem_has_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    write = data_makers().write_result
    runs = tuple(
        write(tmp_path, mean, method=method, alpha=alpha)
        for method, alpha, mean in (("craft", 0.1, 0.5), ("fedavg", 0.1, 0.4), ("craft", 9.0, 0.8))
    )
    finish(SweepResult(tmp_path, runs), page=False, quiet=False, as_json=False)
    told = capsys.readouterr().out
    assert told.index("alpha 0.1") < told.index("0.400") < told.index("alpha 9.0")
    assert told.index("alpha 9.0") < told.index("0.800")
    finish(SweepResult(tmp_path, runs[:2]), page=False, quiet=False, as_json=False)
    told = capsys.readouterr().out
    assert told.startswith("Digits & MLP, 50 clients, 10 per round, 500 rounds")
    assert "alpha" not in told


def test_diverged_run_is_marked_and_never_best(tmp_path: Path) -> None:
    write = data_makers().write_result
    lost = {"state": "stopped", "reason": "not finite: client 3", "reached": 7}
    runs = (
        write(tmp_path, 0.9, method="fedavg", **lost),
        write(tmp_path, 0.5, method="craft"),
        write(tmp_path, 0.4, method="config"),
    )
    table = score_table(SweepResult(tmp_path, runs).rows(), "title")
    names, means, *_ = ([*column.cells] for column in table.columns)
    assert names == ["FedAvg (diverged)", "ConFIG", "CRAFT"]
    assert {str(mean.style) for mean in means} == {""}, "nothing is best without intervals"
    rounds = next(column for column in table.columns if column.header == "Rounds")
    assert [*rounds.cells] == ["7", "500", "500"]


@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_but_failures_is_reported_as_such(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = data_makers().write_result(tmp_path, None, method="fedavg", state="failed", reached=0)
    result = SweepResult(tmp_path, (lost,), {lost.directory.name: "ValueError: it broke"})
    for end in (
        lambda: finish(result, page=True, quiet=False, as_json=as_json),
        lambda: finish_reproduction(
            Reproduction(preset("table-femnist"), result), tmp_path, False, as_json
        ),
    ):
        with pytest.raises(typer.Exit) as caught:
            end()
        assert caught.value.exit_code == 1
        told = capsys.readouterr().err
        assert "1 of 1 runs failed" in told
        assert "ValueError: it broke" in told


def interrupt(
    process: subprocess.Popen[str], started: Path, number: int = signal.SIGINT
) -> tuple[str, int]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if started.is_file() and started.stat().st_size > 0:
            break
        time.sleep(0.05)
    process.send_signal(number)
    _, told = process.communicate(timeout=120)
    return told, process.returncode


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedcraft", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_ctrl_c_saves_a_checkpoint_and_prints_the_resume_command(here: Path) -> None:
    keys = ["rounds=3000", "clients=10", "clients_per_round=4", "checkpoint_every=0"]
    keys += ["evaluate_every=0", "executor=serial"]
    process = start("run", *keys, "--out", "a")
    told, code = interrupt(process, here / "a" / "metrics.jsonl")
    assert code == 130
    assert "fedcraft resume a" in told
    assert "Traceback" not in told
    assert Run(here / "a").state == "interrupted"
    (checkpoint,) = (here / "a" / "checkpoints").iterdir()
    rounds = int(checkpoint.name.rpartition("-")[2])
    assert 0 < rounds < 3000
    assert Run(here / "a").records[-1]["round"] == rounds


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_a_scheduler_leave_checkpoints_of_a_sweep(number: int, here: Path) -> None:
    (here / "mine.toml").write_text(
        "rounds = 3000\nclients = 10\nclients_per_round = 4\ncheckpoint_every = 0\n"
        "evaluate_every = 0\n[grid]\nseed = [1]\n"
    )
    process = start("sweep", "mine.toml", "--out", "out", "--jobs", "1")
    deadline = time.monotonic() + 120
    while not list(here.glob("out/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    (table,) = here.glob("out/*/metrics.jsonl")
    told, code = interrupt(process, table, number)
    assert code == 130
    assert "Run the command again" in told
    assert Run(table.parent).state == "interrupted"
    assert list((table.parent / "checkpoints").iterdir())


@pytest.mark.parametrize("beside", [{}, {"mean_paper": 0.722, "mean_difference": -0.016}])
def test_long_names_cost_a_table_no_digit(beside: dict[str, float]) -> None:
    scores = {
        "mean": 0.706,
        "best10": 0.931,
        "worst10": 0.373,
        "std": 0.161,
        "conflicts": 0.3,
        "mean_sd": 0.012,
    }
    rates = {"client_lr": 0.005, "server_lr": 0.1}
    names = {"craft": 500, "craft-at-least-uniform": 50}
    rows = [
        {"label": name, "rounds": rounds, "diverged": 0, **scores, **rates, **beside}
        for name, rounds in names.items()
    ]
    console = Console(width=80, record=True, file=StringIO())
    console.print(score_table(rows, "title"))
    text = console.export_text()
    assert "…" not in text
    for shown in ("0.706", "0.012", "0.931", "0.373", "0.161", "0.005 / 0.1", "500"):
        assert shown in text
    assert all(len(line) <= 80 for line in text.splitlines())
