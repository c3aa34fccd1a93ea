"""Two starts on one directory: one of them runs, the other changes nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from contextlib import suppress
from functools import partial

import pytest
import torch

from benchmarks.torture import fork
from fedcraft.engine import Callback, run
from fedcraft.errors import CheckpointError, ConfigError
from fedcraft.methods import method
from fedcraft.runs import about
from fedcraft.runs.lock import Lock, is_free
from fedcraft.runs.seal import read_checked
from fedcraft.runs.verify import check

_RACES = 6


@pytest.mark.parametrize("race", range(_RACES))
def test_two_starts_on_one_new_directory_never_mix(
    race, federation, model, settings, tmp_path, run_tables
):
    names = ("craft", "fedavg")
    choice = settings(rounds=2, evaluate_every=1)
    gate = multiprocessing.get_context("fork").Barrier(2)

    def work(name):
        gate.wait()
        try:
            run(
                method(name), federation, model, choice, tmp_path / "run",
                config=lambda executor: f'method = "{name}"\n'.encode(),
            )  # fmt: skip
        except ConfigError:
            os._exit(7)
        os._exit(0)

    started = [fork(partial(work, name)) for name in names]
    for process in started:
        process.join()
    assert sorted(process.exitcode for process in started) == [0, 7]
    winner = names[[process.exitcode for process in started].index(0)]
    assert (tmp_path / "run/config.toml").read_text() == f'method = "{winner}"\n'
    assert check(tmp_path / "run") == []
    run(method(winner), federation, model, choice, tmp_path / "alone")
    assert run_tables(tmp_path / "run") == run_tables(tmp_path / "alone")


class _At(Callback):
    def __init__(self, action):
        self.action = action

    def on_round(self, record):
        if record["round"] == 3:
            self.action()


def _rename(place):
    place.rename(place.with_name("elsewhere"))


def _replace(place):
    shutil.copytree(place, place.with_name("copy"))
    _rename(place)
    place.with_name("copy").rename(place)


_LOSSES = {
    "deleted": shutil.rmtree,
    "renamed": _rename,
    "replaced": _replace,
    "lock deleted": lambda place: (place / ".lock").unlink(),
}


@pytest.mark.parametrize("loss", _LOSSES)
@pytest.mark.parametrize("memory", [1024.0, 1e-3])
def test_a_directory_that_is_lost_during_a_run_ends_it_and_is_not_made_again(
    loss, memory, federation, model, settings, tmp_path
):
    place = tmp_path / "run"
    watch = [_At(lambda: _LOSSES[loss](place))]
    choice = settings(state_memory_mb=memory)
    with pytest.raises(CheckpointError, match=f"{place}"):
        run(method("ditto"), federation, model, choice, place, callbacks=watch)
    assert place.exists() == (loss in ("replaced", "lock deleted"))
    assert is_free(place)


def test_a_run_whose_directory_was_renamed_is_resumed_under_its_new_name(
    federation, model, settings, tmp_path, same_run
):
    watch = [_At(lambda: _rename(tmp_path / "run"))]
    with pytest.raises(CheckpointError, match="was deleted, renamed or replaced"):
        run(method("ditto"), federation, model, settings(), tmp_path / "run", callbacks=watch)
    run(method("ditto"), federation, model, settings(), tmp_path / "elsewhere", resume=True)
    run(method("ditto"), federation, model, settings(), tmp_path / "whole")
    same_run(tmp_path / "elsewhere", tmp_path / "whole")
    assert check(tmp_path / "elsewhere") == []


def test_whoever_looks_while_a_run_writes_finds_no_damage(
    federation, model, settings, tmp_path, monkeypatch
):
    monkeypatch.setattr("fedcraft.runs.writer._STATUS_SECONDS", 0.0)
    choice = settings(rounds=100, checkpoint_every=1, keep_checkpoints=1, evaluate_every=50)
    place = tmp_path / "run"
    process = fork(lambda: run(method("ditto"), federation, model, choice, place))
    while process.is_alive():
        assert check(place) == []
        for name in ("status.json", "metrics.jsonl", "clients.csv", "conflicts.csv"):
            with suppress(FileNotFoundError):  # not written yet
                read_checked(place / name)
    assert process.exitcode == 0


def test_the_directory_of_a_run_that_never_began_is_free_again(
    federation, model, settings, tmp_path, monkeypatch
):
    def fail(*args):
        raise RuntimeError("no executor")

    monkeypatch.setattr("fedcraft.engine.simulation.make_executor", fail)
    with pytest.raises(RuntimeError):
        run(method("craft"), federation, model, settings(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_lock_file_deleted_between_opening_and_locking_is_made_again(tmp_path, monkeypatch):
    open_file, opened = os.open, []

    def open_and_lose(path, *args):
        file = open_file(path, *args)
        if not opened:
            os.unlink(path)
        opened.append(file)
        return file

    monkeypatch.setattr(os, "open", open_and_lose)
    lock = Lock(tmp_path)
    monkeypatch.undo()
    assert len(opened) == 2
    assert not is_free(tmp_path)
    lock.release()


def test_a_resume_elsewhere_warns_and_is_recorded_without_changing_the_first_environment(
    federation, model, settings, tmp_path, monkeypatch
):
    run(method("craft"), federation, model, settings(rounds=2), tmp_path)
    before = (tmp_path / "environment.json").read_bytes()
    here = about.environment()
    elsewhere = {
        **here,
        "torch_capability": "other",
        "packages": {**here["packages"], "torch": "9"},
    }
    monkeypatch.setattr("fedcraft.runs.writer.environment", lambda: elsewhere)

    with pytest.warns(UserWarning, match=r"torch_capability was .*, is other, torch was .*, is 9"):
        run(method("craft"), federation, model, settings(rounds=3), tmp_path, resume=True)

    assert (tmp_path / "environment.json").read_bytes() == before
    (resumed,) = json.loads((tmp_path / "resumed.json").read_text())
    assert (resumed["round"], resumed["torch_capability"]) == (2, "other")
    assert "another environment" in (tmp_path / "log.txt").read_text()


def test_a_processor_that_rounds_differently_is_noticed_by_its_results():
    then = about.environment()
    matmul = torch.Tensor.__matmul__

    assert about.rounding_differences(json.dumps(then).encode(), about.environment()) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "__matmul__", lambda a, b: matmul(a, b) * (1 + 1e-7))
        (changed,) = about.rounding_differences(json.dumps(then).encode(), about.environment())
    assert changed.startswith("arithmetic was ")
    del then["arithmetic"]  # as in runs of fedcraft 0.1.0
    assert about.rounding_differences(json.dumps(then).encode(), about.environment()) == []


def test_files_that_killed_processes_left_are_swept(federation, model, settings, tmp_path):
    run(method("ditto"), federation, model, settings(rounds=2), tmp_path)
    stale = [
        ".status.json.123.tmp",
        "split.npz.0123456789abcdef.tmp",
        "states/.client-0000001-round-0000001-0.safetensors.5.tmp",
        "checkpoints/.unfinished-round-000009-77",
    ]
    for name in stale[:3]:
        (tmp_path / name).write_text("half")
    (tmp_path / stale[3]).mkdir()
    run(method("ditto"), federation, model, settings(rounds=2), tmp_path, resume=True)
    assert not [name for name in stale if (tmp_path / name).exists()]


def test_diverged_is_a_field_of_the_status(federation, model, settings, tmp_path):
    choice = settings(client_lr=1000.0, server_lr=1000.0, nonfinite="stop", rounds=20)
    run(method("fedavg"), federation, model, choice, tmp_path / "a")
    run(method("fedavg"), federation, model, settings(rounds=1), tmp_path / "b")
    found = [json.loads((tmp_path / n / "status.json").read_text())["diverged"] for n in "ab"]
    assert found == [True, False]
