"""``kill -9`` at any moment, then resume: nothing lost, nothing torn, nobody left behind."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from fedcraft.engine import run
from fedcraft.local.store import ClientStates
from fedcraft.methods import method
from fedcraft.runs.checkpoint import Checkpoints

_KILLS = 6  # for each method
_ROUNDS = 12


def _start(work):
    """Run ``work`` in a process of its own, forked, because importing torch takes seconds."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def _descendants(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(child) for child in children.read_text().split()] if children.exists() else []
    return found + [below for child in found for below in _descendants(child)]


def _gone(pids, patience=5.0):
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def _alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


@pytest.mark.parametrize(
    ("name", "executor"),
    [("craft", "processes"), ("ditto+craft", "serial"), ("fedfv", "processes"), ("afl", "serial")],
)
def test_killed_at_random_moments_and_resumed_is_never_interrupted(
    name, executor, federation, model, settings, tmp_path, same_run
):
    choice = settings(rounds=_ROUNDS, executor=executor, workers=2, checkpoint_every=2)

    def work(place, resume=True):
        run(method(name), federation, model, choice, place, resume=resume)

    started = time.monotonic()
    work(tmp_path / "whole")
    duration = time.monotonic() - started
    luck, kills, torn = random.Random(name), 0, tmp_path / "torn"
    while kills < _KILLS:
        process = _start(lambda: work(torn))
        time.sleep(luck.uniform(0.0, 0.8 * duration))
        workers = _descendants(process.pid)
        process.kill()
        process.join()
        assert _gone(workers), "workers outlive a parent that was killed"
        if process.exitcode == -signal.SIGKILL:
            kills += 1
        else:  # it was done: start over, so that every kill hits something
            shutil.rmtree(torn)
    work(torn)

    same_run(torn, tmp_path / "whole")


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

    process = _start(lambda: work(tmp_path / "torn", deadly=True))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    work(tmp_path / "torn")
    work(tmp_path / "whole")

    same_run(tmp_path / "torn", tmp_path / "whole")
