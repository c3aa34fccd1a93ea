"""Mistakes of a person at the terminal and in Python: one readable message each, no traceback."""

from __future__ import annotations

import errno
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedcraft
from fedcraft.cli.app import app
from fedcraft.errors import FedcraftError

TINY: dict[str, Any] = {"rounds": 1, "executor": "serial", "clients": 10}

# What is typed, and what the message must contain: the key, what was found, the fix.
TYPED: list[tuple[str, tuple[str, ...]]] = [
    ("compare craft method=fedavg", ("method", "'fedavg'", "without a key")),
    ("compare carft", ("method", "'carft'", "'craft'")),
    ("compare craft --baseline fedavg rounds=1", ("baseline", "craft", "'fedavg'")),
    ("compare craft grid.client_lr=0.1", ("command line", "'grid.client_lr=[0.1]'")),
    ("compare craft grid.client_lr=[-1]", ("command line: client_lr", "above 0.0", "-1")),
    ("compare craft --clients-per-round 3", ("--clients-per-round", "clients_per_round=VALUE")),
    ("compare craft model=cnn", ("model: cnn", "digits", "(64,)", 'model = "mlp"')),
    ("compare craft dataset=cifar10 offline=true", ("'cifar10'", "data_root", "FEDCRAFT_DATA")),
    ("compare craft --out /dev/null", ("out:", "/dev/null", "new folder")),
    ("compare craft --config grid.toml", ("grid.toml", "[grid]", "fedcraft sweep grid.toml")),
    ("run craft", ("craft", "name of a method", "method=craft")),
    ("run digits", ("digits", "dataset=digits")),
    ("run rounds", ("rounds is a key", "rounds=VALUE")),
    ("run mine.toml", ("mine.toml", "does not exist", "'plain.toml'")),
    ("run --rounds 3", ("--rounds", "not an option", "rounds=VALUE")),
    ("run lr=0.1", ("'lr'", "'client_lr'")),
    ("run client_lr=0,1", ("client_lr", "a number", '"0,1"')),
    ("run model=cnn", ("model: cnn", "digits", "(64,)", 'model = "mlp"')),
    ("run model_options.hidden=abc", ("model_options.hidden", "'abc'", "[200, 200]")),
    ("run model_options.hiden=[3]", ("model_options", "'hiden'", "'hidden'")),
    ("run aggregator.constrain=equal", ("aggregator", "'constrain'", "'constraint'")),
    ("run twice.csv", ("twice.csv", "a table", "dataset=twice.csv")),
    ("run grid.toml", ("grid.toml", "[grid]", "fedcraft sweep grid.toml")),
    ("run --out /dev/null", ("out:", "/dev/null", "new folder")),
    ("run --out a-file/run", ("out:", "a-file", "new folder")),
    ("run dataset=twice.csv", ("twice.csv", "'a'", "more than once", "rename")),
    ("run dataset=latin.csv", ("latin.csv", "UTF-8", "iconv")),
    ("run dataset=lists.parquet", ("lists.parquet", "'x'", "list", "features='x'")),
    ("run dataset=missing.csv", ("dataset", "missing.csv", "does not exist")),
    ("data get cifar11", ("'cifar11'", "'cifar10'")),
    ("data show digits cifar10", ("one data set", "'digits'", "'cifar10'")),
    ("data show digits clients=100000", ("100000 clients", "lower clients or min_size")),
    ("reproduce table-femnst", ("'table-femnst'", "'table-femnist'")),
    ("reproduce table-femnist rounds=3", ("rounds=3", "--rerun")),
    ("reproduce table-femnist --scale tiny method=fedavg", ("method", "--method NAME")),
    ("reproduce table-femnist --scale tiny roundz=3", ("command line", "'roundz'", "'rounds'")),
    ("report nowhere", ("nowhere", "not a folder")),
    ("resume nowhere", ("nowhere", "does not exist")),
    ("resume empty", ("empty", "not a run directory", "Name another")),
    ("resume folder", ("folder is not a run directory", "Name one of the runs in it", "folder/a")),
    ("sweep grid.toml grid.client_lr=0.3", ("command line", "'grid.client_lr=[0.3]'")),
    ("sweep grid.toml --baseline fedavg", ("baseline", "craft", "'fedavg'")),
    ("sweep plain.toml", ("plain.toml", "[grid]", "client_lr = [0.01, 0.1]")),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDCRAFT_DATA", raising=False)
    Path("grid.toml").write_text("rounds = 1\n[grid]\nclient_lr = [0.1, 0.2]\n")
    Path("plain.toml").write_text("rounds = 1\n")
    Path("a-file").touch()
    Path("empty").mkdir()
    Path("folder/a").mkdir(parents=True)
    Path("folder/a/config.toml").write_text('method = "craft"\n')
    Path("twice.csv").write_text("a,a,label\n1,2,0\n3,4,1\n")
    Path("latin.csv").write_bytes("größe,label\n1,0\n2,1\n".encode("latin-1"))
    pq.write_table(
        pa.table({"x": [[1.0], [2.0]], "y": [1.0, 2.0], "label": [0, 1]}), "lists.parquet"
    )
    return tmp_path


@pytest.mark.parametrize(("typed", "essential"), TYPED, ids=[typed for typed, _ in TYPED])
def test_mistake_at_the_terminal(here: Path, typed: str, essential: tuple[str, ...]) -> None:
    before = sorted(here.rglob("*"))
    result = CliRunner().invoke(app, shlex.split(typed))
    shown = re.sub(r"[\s│╭╮╰╯─]+", " ", result.output)
    assert result.exit_code == 2, shown
    assert [word for word in essential if word not in shown] == [], shown
    assert "Traceback" not in shown
    assert sorted(here.rglob("*")) == before  # nothing was started


def dense() -> torch.Tensor:
    return torch.tensor([[1.0, 0.5], [-1.0, 0.5]])


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(10))


def train(**keys: Any) -> Callable[[], object]:
    return lambda: fedcraft.run(**{"out": "run", **TINY, **keys})


def combine(updates: Any, **more: Any) -> Callable[[], object]:
    return lambda: fedcraft.aggregator("craft").aggregate(updates, **more)


def old_weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.utils.weight_norm(nn.Linear(64, 10))


CALLED: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "parameter": (
        lambda: fedcraft.aggregator("craft", constrain=1),
        ("'craft'", "'constrain'", "'constraint'"),
    ),
    "rule": (lambda: fedcraft.aggregator("carft"), ("'carft'", "'craft'")),
    "key": (lambda: fedcraft.Config(roundz=3), ("'roundz'", "'rounds'")),
    "name": (lambda: fedcraft.compare("carft"), ("method", "'carft'", "'craft'")),
    "sparse": (combine(dense().to_sparse()), ("updates", "dense", ".to_dense()")),
    "meta": (combine(dense().to("meta")), ("updates", "meta")),
    "whole numbers": (combine(np.ones((2, 3), int)), ("updates", "int64", "cast")),
    "weights": (combine(dense(), weights=[1, 2, 3]), ("weights", "2 numbers", "(3,)")),
    "lazy module": (train(model=lazy()), ("model", "0.weight", "lazy", "batch of inputs")),
    "lazy factory": (train(model=lazy), ("model", "0.weight", "lazy", "batch of inputs")),
    "meta module": (
        train(model=nn.Linear(64, 10, device="meta")),
        ("model", "weight", "meta", "to_empty"),
    ),
    "lazy modules": (
        lambda: fedcraft.Updates.from_modules(lazy(), [lazy()]),
        ("module", "0.weight", "lazy"),
    ),
    "weight_norm": (
        lambda: train(model=old_weight_norm())(),
        ("model", "weight", "torch.nn.utils.parametrizations"),
    ),
    "out": (train(out="/dev/null"), ("out:", "/dev/null", "new folder")),
    "path at home": (
        lambda: fedcraft.data.load("~/nothing-here.csv"),
        (str(Path("~").expanduser()), "does not exist"),
    ),
    "runs at home": (
        lambda: fedcraft.report.load_runs("~/nothing-here"),
        (str(Path("~").expanduser()), "not a folder"),
    ),
}


@pytest.mark.parametrize("mistake", CALLED)
def test_mistake_in_python(here: Path, mistake: str) -> None:
    call, essential = CALLED[mistake]
    with pytest.raises(FedcraftError) as raised:
        call()
    message = str(raised.value)
    assert [word for word in essential if word not in message] == [], message


@pytest.mark.parametrize(
    ("number", "fix"), [(errno.EMFILE, "ulimit -n"), (errno.ENOSPC, "Free some space")]
)
def test_error_of_the_system_says_what_to_do(
    here: Path, monkeypatch: pytest.MonkeyPatch, number: int, fix: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "The system refuses")

    monkeypatch.setattr("fedcraft.atomic.os.fsync", refuse)
    result = CliRunner().invoke(app, ["run", "rounds=1", "executor=serial", "--out", "a"])
    assert result.exit_code == 1
    assert "a/" in result.stderr  # the file
    assert fix in result.stderr


def test_page_never_replaces_a_pipe_or_a_device(here: Path) -> None:
    from fedcraft.atomic import write_atomically

    os.mkfifo("pipe")
    with pytest.raises(OSError, match="device"):
        write_atomically(Path("pipe"), b"a page")
    assert Path("pipe").is_fifo()


def test_same_error_of_many_runs_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    from fedcraft.cli.outcome import report_failures
    from fedcraft.studies.sweep import SweepResult

    failures = {f"craft-{number}": "no room\nmore" for number in range(24)}
    with pytest.raises(typer.Exit) as end:
        report_failures(SweepResult(Path("runs"), (), failures))
    shown = capsys.readouterr().err
    assert end.value.exit_code == 1
    assert shown.count("no room") == 1
    assert "craft-0 and 23 others: no room" in shown


def test_cohort_follows_the_smallest_federation_of_a_grid() -> None:
    from fedcraft.studies.compare import comparison_plan

    plan = comparison_plan("craft", overrides={"grid.clients": [3, 50], "client_lr": 0.1})
    assert {c.clients: c.clients_per_round for c in plan.configs()} == {3: 3, 50: 10}
