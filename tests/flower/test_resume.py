"""A server that dies continues where it stopped, and ends with the same result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from flwr.app import ArrayRecord, Message

from benchmarks.grids import InProcessGrid
from fedcraft.errors import StateError
from fedcraft.report import load_runs
from fedcraft.studies.run import run

ROUNDS = 5


class PowerCut(Exception):
    """What a killed process does not get to see."""


class MortalGrid(InProcessGrid):
    """Dies when it has sent ``limit`` messages; the clients have then done their work already."""

    def __init__(self, *args: Any, limit: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limit = limit

    def push_messages(self, messages: list[Message]) -> list[str]:
        accepted = super().push_messages(messages)
        if self.sent >= self.limit:
            raise PowerCut
        return accepted


def _interrupted(name: str, run_dir: Path, limit: int, app: Any, **options: Any) -> Any:
    """Train until the power goes, then again with everything new but the disk."""
    doomed = MortalGrid(app, small.CLIENTS, limit=limit)
    with pytest.raises(PowerCut):
        small.train(name, rounds=ROUNDS, grid=doomed, run_dir=run_dir, **options)
    survivors = InProcessGrid(app, small.CLIENTS, node_ids=[77, 5, 900, 13])
    return small.train(name, rounds=ROUNDS, grid=survivors, run_dir=run_dir, **options)


@pytest.mark.parametrize("limit", [4, 11, 20])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedadam", {}),
        ("ditto+craft", {}),
        ("afl", {}),
        ("craft-auto", {"model_average": "tail", "server_lr_schedule": "linear"}),
    ],
)
def test_killed_and_resumed_equals_uninterrupted(
    name: str, options: dict[str, Any], limit: int, tmp_path: Path
) -> None:
    """Model, client states and tables, wherever in a round the power went."""
    whole = small.train(
        name,
        rounds=ROUNDS,
        grid=InProcessGrid(small.app(name, state_dir=tmp_path / "a"), small.CLIENTS),
        run_dir=tmp_path / "whole",
        **options,
    )
    app = small.app(name, state_dir=tmp_path / "b")
    resumed = _interrupted(name, tmp_path / "cut", limit, app, **options)
    assert torch.equal(small.theta(resumed), small.theta(whole))
    assert torch.equal(resumed.state.server.start, whole.state.server.start)
    assert small.tables(tmp_path / "cut") == small.tables(tmp_path / "whole")
    histories = [s.state.result.train_metrics_clientapp for s in (resumed, whole)]
    assert histories[0] == histories[1]


@pytest.mark.parametrize("limit", [9, 14, 18])
def test_clients_go_back_with_a_server_that_saves_every_third_round(
    limit: int, tmp_path: Path
) -> None:
    app = small.app("ditto", state_dir=tmp_path / "states")
    options = {"checkpoint_every": 3, "evaluate_every": 1, "fraction_evaluate": 0.0}
    resumed = _interrupted("ditto", tmp_path / "run", limit, app, **options)
    assert torch.equal(small.theta(resumed), small.simulate("ditto", rounds=ROUNDS))
    last = small.tables(tmp_path / "run")["metrics"][-1]
    assert last["states_lost"] == []


def test_a_client_that_lost_its_state_says_so(tmp_path: Path) -> None:
    """Context state dies with the SuperNode; the server counts whom that has hit."""
    resumed = _interrupted("ditto", tmp_path / "run", 12, small.app("ditto"))
    rows = small.tables(tmp_path / "run")["metrics"]
    assert [row["states_lost"] for row in rows] == [[], [], [0, 1, 2, 3], [], []]
    assert torch.equal(small.theta(resumed), small.simulate("ditto", rounds=ROUNDS))


def test_a_finished_run_returns_its_result_and_asks_nobody(tmp_path: Path) -> None:
    first = small.train(rounds=2, run_dir=tmp_path / "run", evaluate_every=1)
    grid = InProcessGrid(small.app(), small.CLIENTS)
    again = small.train(rounds=2, grid=grid, run_dir=tmp_path / "run", evaluate_every=1)
    assert grid.sent == 0
    results = [s.state.result for s in (first, again)]
    assert results[0].evaluate_metrics_clientapp == results[1].evaluate_metrics_clientapp
    assert torch.equal(small.theta(first), small.theta(again))


def test_more_rounds_than_before_continue_the_run(tmp_path: Path) -> None:
    small.train(rounds=2, run_dir=tmp_path / "run")
    longer = small.train(rounds=ROUNDS, run_dir=tmp_path / "run")
    assert torch.equal(small.theta(longer), small.simulate("craft", rounds=ROUNDS))


@pytest.mark.parametrize(
    ("change", "name"),
    [({"seed": 6}, "seed"), ({"aggregator": {"constraint": "at_least"}}, "aggregator")],
)
def test_another_run_in_the_same_directory_is_refused(
    change: dict[str, Any], name: str, tmp_path: Path
) -> None:
    small.train(rounds=1, run_dir=tmp_path / "run")
    before = small.tables(tmp_path / "run")
    with pytest.raises(StateError, match=f"holds a run with {name} ="):
        small.train(rounds=2, run_dir=tmp_path / "run", **change)
    assert small.tables(tmp_path / "run") == before


def test_a_resumed_run_draws_whom_it_would_have_drawn(tmp_path: Path) -> None:
    """By the clients' numbers, although its nodes are others and nobody has spoken yet."""
    options = {"fraction_train": 0.5, "one_thread": False, "fraction_evaluate": 0.0}
    small.train("fedavg", rounds=ROUNDS, run_dir=tmp_path / "whole", **options)
    _interrupted("fedavg", tmp_path / "cut", 9, small.app("fedavg"), **options)
    drawn = [
        [row["clients"] for row in small.tables(tmp_path / name)["metrics"]]
        for name in ("whole", "cut")
    ]
    assert drawn[0] == drawn[1]


def _simulated(path: Path) -> None:
    few = {"rounds": 1, "clients": 4, "clients_per_round": 2, "executor": "serial"}
    run(few, out=path, method="fedavg", dataset="digits", model="mlp")


def _finished(path: Path) -> None:
    small.train(rounds=1, run_dir=path)


def _without_checkpoints(make: Any) -> Any:
    def made(path: Path) -> None:
        make(path)
        shutil.rmtree(path / "checkpoints")

    return made


def _project(path: Path) -> None:
    path.mkdir()
    (path / "config.toml").write_text("title = 'my project'\n")


def _content(path: Path) -> dict[str, bytes]:
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (_finished, {"client_lr": 0.3}, "holds a run with client_lr ="),
        (_without_checkpoints(_finished), {"client_lr": 0.3}, "holds a run with client_lr ="),
        (_without_checkpoints(_finished), {}, "a finished run without its checkpoints"),
        (_simulated, {}, "not by a federation;"),
        (_without_checkpoints(_simulated), {}, "not by a federation;"),
        (_project, {}, "not by a federation;"),
    ],
)
def test_what_is_not_this_run_is_left_as_it_is(
    make: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "run")
    before = _content(tmp_path / "run")
    with pytest.raises(StateError, match=message):
        small.train(rounds=2, run_dir=tmp_path / "run", **options)
    assert _content(tmp_path / "run") == before


def test_another_models_run_is_left_as_it_is(tmp_path: Path) -> None:
    small.train("fedavg", rounds=1, run_dir=tmp_path, model=None)
    before = _content(tmp_path)
    other = ArrayRecord(torch.nn.Linear(3, 2).state_dict())
    grid = InProcessGrid(small.app("fedavg"), small.CLIENTS)
    with pytest.raises(StateError, match="belongs to another model"):
        small.strategy("fedavg", run_dir=tmp_path, model=None).start(grid, other, 2, 5.0)
    assert _content(tmp_path) == before


def test_a_run_that_fails_says_so(tmp_path: Path) -> None:
    with pytest.raises(PowerCut):
        small.train(run_dir=tmp_path, grid=MortalGrid(small.app(), small.CLIENTS, limit=5))
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["round"]) == ("failed", 1)


def test_the_run_directory_is_one_that_the_report_reads(tmp_path: Path) -> None:
    small.train(rounds=3, run_dir=tmp_path / "run", evaluate_every=1, evaluate_train_loss=True)
    (found,) = load_runs(tmp_path / "run")
    assert (found.method, found.state, found.last_round) == ("craft", "finished", 3)
    accuracies = found.accuracies()
    assert list(accuracies) == [0, 1, 2, 3]
    assert found.final("mean") == pytest.approx(sum(accuracies.values()) / 4)
    assert found.final("train_loss") > 0
    assert set(found.conflicts()["layer"]) == {"1", "3", "all"}
