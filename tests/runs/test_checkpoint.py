"""Checkpoints are whole or not there; damaged and foreign ones are named and passed over."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from fedcraft.engine import Callback, run
from fedcraft.errors import CheckpointError
from fedcraft.local import ClientData
from fedcraft.methods import method
from fedcraft.models import build
from fedcraft.runs.checkpoint import Checkpoints
from fedcraft.runs.statefile import read_state, write_state
from fedcraft.runs.writer import RunWriter

_STATE = {
    "round": 3,
    "rate": 0.1,
    "name": "craft",
    "nothing": None,
    "flag": True,
    "nested": {"vector": torch.arange(5.0), 7: [torch.ones(2, 2), (1, 2.5)], "empty": {}},
    "array": np.arange(3),
}


def test_a_state_comes_back_as_it_was(tmp_path):
    write_state(tmp_path, _STATE)
    found = read_state(tmp_path)

    assert found["nested"]["vector"].equal(_STATE["nested"]["vector"])
    assert found["nested"][7][0].equal(torch.ones(2, 2))
    assert found["nested"][7][1] == (1, 2.5)
    assert found["nested"]["empty"] == {}
    assert np.array_equal(found["array"], _STATE["array"])
    plain = ("round", "rate", "name", "nothing", "flag")
    assert {k: found[k] for k in plain} == {k: _STATE[k] for k in plain}


def test_tensors_that_share_memory_are_saved_each_with_its_own(tmp_path):
    base = torch.arange(6.0)
    write_state(tmp_path, {"whole": base, "part": base[2:4], "again": base, "turned": base[::2]})
    found = read_state(tmp_path)

    assert found["part"].tolist() == [2.0, 3.0]
    assert found["turned"].tolist() == [0.0, 2.0, 4.0]
    assert found["whole"].equal(found["again"])


def test_what_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"state\['a'\]\[0\]: a set cannot be saved"):
        write_state(tmp_path, {"a": [{1}]})


def _cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def _flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def _renumber(path):
    path.write_text(path.read_text().replace('"format": 1', '"format": 9'))


_DAMAGE = {
    "tensors cut": ("state.safetensors", _cut),
    "one bit of a tensor": ("state.safetensors", _flip),
    "no tensors": ("state.safetensors", lambda path: path.unlink()),
    "tree cut": ("state.json", _cut),
    "tree changed": ("state.json", lambda p: p.write_text(p.read_text().replace('"craft"', '"x"'))),
    "no tree": ("state.json", lambda path: path.unlink()),
    "foreign json": ("state.json", lambda path: path.write_text('{"hello": "world"}')),
    "other format": ("state.json", _renumber),
    "not json": ("state.json", lambda path: path.write_bytes(b"\x00\xff" * 20)),
}  # fmt: skip


@pytest.mark.parametrize("kind", _DAMAGE)
def test_damage_is_an_error_that_names_the_file(tmp_path, kind):
    write_state(tmp_path, _STATE)
    name, damage = _DAMAGE[kind]
    damage(tmp_path / name)

    with pytest.raises(CheckpointError, match=name):
        read_state(tmp_path)


def test_the_last_few_are_kept_and_the_newest_is_found(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    assert checkpoints.latest() is None
    for number in (5, 10, 123):
        checkpoints.save(number, {"round": number})

    assert sorted(p.name for p in checkpoints.directory.iterdir()) == [
        "round-000010",
        "round-000123",
    ]
    assert checkpoints.latest()["round"] == 123


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    for number in (1, 2, 3):
        checkpoints.save(number, {"round": number})
    _cut(checkpoints.path(3) / "state.json")
    (checkpoints.path(2) / "state.safetensors").unlink()

    with pytest.warns(UserWarning, match="round-00000[23]"):
        assert checkpoints.latest()["round"] == 1


def test_nothing_but_damaged_checkpoints_is_an_error(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"round": 1})
    _cut(checkpoints.path(1) / "state.json")

    with (
        pytest.warns(UserWarning, match="passed over"),
        pytest.raises(CheckpointError, match="no checkpoint"),
    ):
        checkpoints.latest()


def test_leftovers_of_a_crash_are_swept_and_never_read(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"round": 1})
    shutil.copytree(checkpoints.path(1), tmp_path / ".unfinished-round-000009-77")

    assert checkpoints.latest()["round"] == 1
    checkpoints.save(2, {"round": 2})
    assert not list(tmp_path.glob(".unfinished*"))


def test_killed_between_two_checkpoints_of_one_round_the_old_one_is_found(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"round": 1, "text": "old"})
    child = os.fork()
    if child == 0:
        rename, moved = Path.rename, []

        def second_is_deadly(path, target):
            if moved:
                os.kill(os.getpid(), signal.SIGKILL)
            moved.append(path)
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", second_is_deadly)
        checkpoints.save(1, {"round": 1, "text": "new"})
        os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert checkpoints.latest()["text"] == "old"
    checkpoints.save(1, {"round": 1, "text": "new"})
    assert checkpoints.latest()["text"] == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["round-000001"]


@pytest.fixture
def small_files():
    """Let no file grow beyond 100 kB, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_does_not_fit_leaves_the_earlier_one_intact(tmp_path, small_files):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"round": 1, "vector": torch.ones(10)})

    with pytest.raises(CheckpointError, match=r"round-000002 cannot be written.*round 1 is intact"):
        checkpoints.save(2, {"round": 2, "vector": torch.ones(10**6)})
    assert checkpoints.latest()["round"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["round-000001"]


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 1 MB, where we may make one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_run_on_a_full_disk_ends_with_a_clear_error_and_can_be_resumed(
    tiny_disk, federation, settings, tmp_path, same_run, big_model
):
    choice = settings(rounds=6, checkpoint_every=2, evaluate_every=0, keep_checkpoints=1)
    filler = tiny_disk / "filler"
    place = tiny_disk / "run"

    def fill(tensors, rows, client, round_index):
        if round_index == 3 and not filler.exists():
            filler.write_bytes(b"x" * (shutil.disk_usage(tiny_disk).free - 100_000))
        return ClientData(tensors, rows)

    with pytest.raises(CheckpointError, match="cannot be written"):
        run(method("craft"), federation, big_model, choice, place, client_data=fill)
    status = json.loads((place / "status.json").read_text())
    assert status["state"] == "failed"
    filler.unlink()
    run(method("craft"), federation, big_model, choice, place, resume=True)
    run(method("craft"), federation, big_model, choice, tmp_path / "whole")

    same_run(place, tmp_path / "whole")


class _Ends(Callback):
    def __init__(self):
        self.seen = []

    def on_end(self, state, reason):
        self.seen.append((state, reason))


def _full(*args, **kwargs):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("where", ["checkpoint._write", "writer.save_model"])
def test_a_disk_that_is_full_at_the_very_end_fails_the_run(
    where, federation, model, settings, tmp_path, monkeypatch
):
    ends = _Ends()
    owner = {"checkpoint._write": Checkpoints, "writer.save_model": RunWriter}[where]
    monkeypatch.setattr(owner, where.partition(".")[2], _full)
    with pytest.raises((OSError, CheckpointError), match="No space"):
        run(
            method("craft"), federation, model, settings(rounds=1), tmp_path, callbacks=[ends]
        )  # fmt: skip

    assert json.loads((tmp_path / "status.json").read_text())["state"] == "failed"
    assert [state for state, _ in ends.seen] == ["failed"]


def test_a_disk_that_is_full_after_ctrl_c_fails_the_run(
    federation, model, settings, tmp_path, monkeypatch
):
    ends = _Ends()
    ends.on_round = lambda record: os.kill(os.getpid(), signal.SIGINT)
    monkeypatch.setattr(Checkpoints, "_write", _full)
    with pytest.raises(CheckpointError, match="No space"):
        run(method("craft"), federation, model, settings(), tmp_path, callbacks=[ends])

    assert json.loads((tmp_path / "status.json").read_text())["state"] == "failed"
    assert [state for state, _ in ends.seen] == ["failed"]


def test_callbacks_hear_of_the_end_and_of_its_cause_even_if_no_file_can_be_written(
    federation, model, settings, tmp_path, monkeypatch
):
    ends = _Ends()
    monkeypatch.setattr(Checkpoints, "_write", _full)
    monkeypatch.setattr(RunWriter, "end", _full)
    with pytest.raises(CheckpointError, match="cannot be written"):
        run(
            method("craft"), federation, model, settings(rounds=1), tmp_path, callbacks=[ends]
        )  # fmt: skip

    assert [state for state, _ in ends.seen] == ["failed"]


@pytest.fixture
def big_model(federation):
    shape = federation.dataset.input_shape
    return build("mlp", input_shape=shape, classes=10, hidden=(300,), seed=3)
