"""``kill -9`` at any moment, then resume: nothing lost, nothing torn, nobody left behind."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from benchmarks.torture import fork, killed_runs, left_over
from fedcraft.engine import run
from fedcraft.local.store import ClientStates
from fedcraft.methods import method
from fedcraft.runs import seal
from fedcraft.runs.checkpoint import Checkpoints
from fedcraft.runs.verify import check

_KILLS = 4  # for each method, each with a resumed copy
_ROUNDS = 12


@pytest.mark.parametrize(
    ("name", "executor"),
    [
        ("craft", "processes"),
        ("ditto+craft", "serial"),
        ("fedfv", "processes"),
        ("afl", "serial"),
        ("fedbuff", "serial"),
    ],
)
def test_killed_at_random_moments_and_resumed_is_never_interrupted(
    name, executor, federation, model, settings, tmp_path
):
    choice = settings(rounds=_ROUNDS, executor=executor, workers=2, checkpoint_every=2)

    def work(place, resume=True):
        run(method(name), federation, model, choice, place, resume=resume)

    places, luck = (tmp_path / "torn", tmp_path / "whole"), random.Random(name)
    assert list(killed_runs(work, *places, kills=_KILLS, luck=luck)) == [""] * _KILLS


def _die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


# Where a checkpoint is most vulnerable: before it is in place, and while old ones go.
_MOMENTS = {
    "before the rename": (Path, "rename"),
    "while old ones are pruned": (Checkpoints, "_prune"),
    "after the clients' states": (Checkpoints, "save"),
    "while states are pruned": (ClientStates, "prune"),
}


@pytest.mark.parametrize("moment", _MOMENTS)
def test_killed_while_checkpointing(
    moment, federation, model, settings, tmp_path, same_run, monkeypatch
):
    choice = settings(rounds=6, checkpoint_every=2, keep_checkpoints=1)

    def work(place, deadly=False):
        if deadly:
            owner, name = _MOMENTS[moment]
            original, calls = getattr(owner, name), []

            def second_is_deadly(*args, **kwargs):
                calls.append(1)
                return _die() if len(calls) == 2 else original(*args, **kwargs)

            setattr(owner, name, second_is_deadly)
        run(method("ditto"), federation, model, choice, place, resume=True)

    process = fork(lambda: work(tmp_path / "torn", deadly=True))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    work(tmp_path / "torn")
    work(tmp_path / "whole")

    same_run(tmp_path / "torn", tmp_path / "whole")


def test_killed_before_the_configuration_is_written_the_directory_is_free_for_another_start(
    federation, model, settings, tmp_path, same_run, monkeypatch
):
    def start(place, deadly=False):
        write = seal.write_atomically

        def write_or_die(path, *args, **options):
            return _die() if path.name == "config.toml" else write(path, *args, **options)

        if deadly:
            monkeypatch.setattr(seal, "write_atomically", write_or_die)
        run(method("craft"), federation, model, settings(), place, config=lambda _: b"seed = 1\n")

    process = fork(lambda: start(tmp_path / "torn", deadly=True))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "torn/seal.txt").exists()
    for place in (tmp_path / "torn", tmp_path / "whole"):
        start(place)

    same_run(tmp_path / "torn", tmp_path / "whole")
    assert left_over(tmp_path / "torn", tmp_path / "whole") == []
    assert not (tmp_path / "torn/resumed.json").exists()
    assert check(tmp_path / "torn") == []
