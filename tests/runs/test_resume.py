"""Interrupted and resumed is the same as never interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from fedcraft.engine import Callback, Interrupted, run
from fedcraft.engine.stopping import Stopping
from fedcraft.errors import BusyError
from fedcraft.methods import method
from fedcraft.runs.writer import RunWriter


class _At(Callback):
    """Do something after a round."""

    def __init__(self, round_number, action):
        self.round_number, self.action = round_number, action

    def on_round(self, record):
        if record["round"] == self.round_number:
            self.action()


def _fail():
    raise RuntimeError("the power is gone")


@pytest.fixture
def torn(federation, model, tmp_path, same_run):
    """Train to the end in ``whole``, and up to a failure in ``torn``; return how to resume it."""

    def tear(name, choice, last):
        def start(folder, **options):
            return run(method(name), federation, model, choice, tmp_path / folder, **options)

        def resume():
            result = start("torn", resume=True)
            same_run(tmp_path / "torn", tmp_path / "whole")
            return result

        start("whole")
        with pytest.raises(RuntimeError, match="power"):
            start("torn", callbacks=[_At(last, _fail)])
        return resume

    return tear


@pytest.mark.parametrize("executor", ["serial", "processes"])
@pytest.mark.parametrize("name", ["craft", "ditto+craft", "fedfv", "afl", "fedadam", "scaffold"])
def test_a_resumed_run_ends_like_an_uninterrupted_one(name, executor, settings, torn):
    resume = torn(name, settings(rounds=7, executor=executor, workers=2), 5)

    assert [row["round"] for row in resume().metrics] == [1, 2, 3, 4, 5, 6, 7]


def test_client_states_on_disk_resume_like_those_in_memory(
    federation, model, settings, tmp_path, same_run
):
    roomy, tight = settings(rounds=6), settings(rounds=6, state_memory_mb=1e-3)
    run(method("ditto+craft"), federation, model, roomy, tmp_path / "roomy")
    with pytest.raises(RuntimeError):
        run(
            method("ditto+craft"), federation, model, tight, tmp_path / "tight",
            callbacks=[_At(5, _fail)],
        )  # fmt: skip
    run(method("ditto+craft"), federation, model, tight, tmp_path / "tight", resume=True)

    same_run(tmp_path / "tight", tmp_path / "roomy")


def test_states_that_no_checkpoint_names_are_deleted(federation, model, settings, tmp_path):
    choice = settings(rounds=12, keep_checkpoints=2)
    run(method("ditto"), federation, model, choice, tmp_path)
    checkpoints = sorted((tmp_path / "checkpoints").iterdir())
    named = set()
    for path in checkpoints:
        text = (path / "state.json").read_text()
        named |= {p.name for p in (tmp_path / "states").iterdir() if p.name in text}

    assert len(checkpoints) == 2
    assert {p.name for p in (tmp_path / "states").iterdir()} == named


@pytest.mark.parametrize("last", [1, 5])  # before the first checkpoint, and after the second
def test_attempts_that_fail_again_and_again_leave_no_more_states_than_one(
    last, federation, model, settings, tmp_path
):
    tight = settings(rounds=6, state_memory_mb=1e-3)
    found = []
    for attempt in range(3):
        with pytest.raises(RuntimeError, match="power"):
            run(
                method("ditto"), federation, model, tight, tmp_path,
                resume=attempt > 0, callbacks=[_At(last, _fail)],
            )  # fmt: skip
        found.append(sorted(path.name for path in (tmp_path / "states").iterdir()))

    assert found[0] == found[1] == found[2]


def test_room_is_made_before_a_resumed_run_writes_anything(
    federation, model, settings, tmp_path, monkeypatch
):
    run(method("ditto"), federation, model, settings(rounds=2), tmp_path)
    kept = sorted((tmp_path / "states").iterdir())
    (tmp_path / "states/client-0000001-round-0000003-0.safetensors").write_bytes(b"a failed try")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunWriter, "begin", full)
    with pytest.raises(OSError, match="No space"):
        run(method("ditto"), federation, model, settings(), tmp_path, resume=True)

    assert sorted((tmp_path / "states").iterdir()) == kept


def test_a_run_killed_before_its_first_checkpoint_starts_again(settings, torn):
    torn("craft", settings(rounds=3, checkpoint_every=0), 2)()


def test_a_damaged_newest_checkpoint_costs_rounds_but_no_bits(settings, torn, tmp_path):
    resume = torn("craft", settings(rounds=6), 5)
    (tmp_path / "torn/checkpoints/round-000004/state.safetensors").write_bytes(b"no")

    with pytest.warns(UserWarning, match=r"round-000004.*damaged"):
        resume()


def test_a_lost_client_state_sends_the_run_back_one_checkpoint(settings, torn, tmp_path):
    resume = torn("ditto", settings(rounds=6), 5)
    next((tmp_path / "torn/states").glob("*round-0000004*")).unlink()

    with pytest.warns(UserWarning, match="is lost"):
        resume()


def test_a_finished_run_can_be_continued(federation, model, settings, tmp_path):
    run(method("craft"), federation, model, settings(rounds=4), tmp_path)
    longer = run(method("craft"), federation, model, settings(rounds=8), tmp_path, resume=True)
    at_once = run(method("craft"), federation, model, settings(rounds=8))

    assert longer.vector.equal(at_once.vector)


def test_resuming_a_finished_run_changes_nothing(federation, model, settings, tmp_path, run_tables):
    first = run(method("craft"), federation, model, settings(), tmp_path)
    before = run_tables(tmp_path)
    again = run(method("craft"), federation, model, settings(), tmp_path, resume=True)

    assert run_tables(tmp_path) == before
    assert again.vector.equal(first.vector)
    assert again.scores["test"].accuracy.tolist() == first.scores["test"].accuracy.tolist()


def test_a_run_that_ends_where_it_was_resumed_leaves_its_checkpoint_alone(
    federation, model, settings, tmp_path
):
    run(method("craft"), federation, model, settings(keep_checkpoints=1), tmp_path)
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    before = checkpoint.stat().st_ino
    run(method("craft"), federation, model, settings(), tmp_path, resume=True)

    assert checkpoint.stat().st_ino == before


def test_an_evaluated_start_is_written_once(federation, model, settings, tmp_path, same_run):
    choice = settings(rounds=3, evaluate_first=True)
    run(method("craft"), federation, model, choice, tmp_path / "whole")
    stop = _At(0, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted):
        run(method("craft"), federation, model, choice, tmp_path / "torn", callbacks=[stop])
    run(method("craft"), federation, model, choice, tmp_path / "torn", resume=True)

    same_run(tmp_path / "torn", tmp_path / "whole")


_OWN_LOSS = """
import sys
from functools import partial
from torch.nn.functional import cross_entropy
from fedcraft.data import federate, load
from fedcraft.engine import Settings, run
from fedcraft.local import local_objective
from fedcraft.methods import method
from fedcraft.models import build

def soft(outputs, labels, smoothing=0.1):
    return cross_entropy(outputs, labels, label_smoothing=smoothing)

class Soft:
    def __init__(self, smoothing):
        self.smoothing = smoothing

    def __call__(self, outputs, labels):
        return soft(outputs, labels, self.smoothing)

inner = local_objective("plain", loss=partial(soft, smoothing=0.2))
data = federate(load("digits"), "iid", clients=4, seed=1)
model = build("mlp", input_shape=data.dataset.input_shape, classes=10, hidden=(4,), seed=1)
chosen = method("ditto", local={"loss": Soft(0.1), "inner": inner})
settings = Settings(rounds=int(sys.argv[2]), clients_per_round=2, executor="serial")
print(run(chosen, data, model, settings, sys.argv[1], resume=True).round)
"""


def test_a_custom_loss_is_known_again_by_another_process(tmp_path):
    for rounds in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", _OWN_LOSS, tmp_path, rounds],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == rounds, done.stderr


def test_a_run_that_stopped_stays_stopped(federation, model, settings, tmp_path):
    choice = settings(rounds=60, evaluate_every=2, target_accuracy=0.3)
    stopped = run(method("craft"), federation, model, choice, tmp_path)
    again = run(method("craft"), federation, model, choice, tmp_path, resume=True)

    assert (again.state, again.round) == ("stopped", stopped.round)


def test_an_evaluation_that_only_the_clock_asked_for_does_not_count_towards_patience(
    federation, model, settings, tmp_path, monkeypatch
):
    still = {"client_lr": 1e-12, "server_lr": 1e-12}
    choice = settings(rounds=50, evaluate_every=2, patience=2, checkpoint_every=0, **still)
    whole = run(method("fedavg"), federation, model, choice)
    with monkeypatch.context() as clock:
        rounds = iter(["", "", "wall time"])
        clock.setattr(Stopping, "out_of_time", lambda self: next(rounds))
        torn = run(method("fedavg"), federation, model, choice, tmp_path)
    resumed = run(method("fedavg"), federation, model, choice, tmp_path, resume=True)

    assert (torn.round, torn.reason) == (3, "wall time")
    assert torn.metrics[-1]["evaluation"]
    assert (whole.round, whole.reason) == (resumed.round, resumed.reason)
    assert whole.round == 6
    assert resumed.vector.equal(whole.vector)
    scheduled = [
        [row["evaluation"] for row in result.metrics if row["round"] % 2 == 0]
        for result in (whole, resumed)
    ]
    assert scheduled[0] == scheduled[1]


def test_two_processes_cannot_write_to_one_directory(federation, model, settings, tmp_path):
    problems = []

    def intrude():
        child = os.fork()
        if child == 0:
            try:
                run(method("craft"), federation, model, settings(), tmp_path, resume=True)
            except BusyError:
                os._exit(7)
            os._exit(0)
        problems.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    run(
        method("craft"),
        federation,
        model,
        settings(rounds=2),
        tmp_path,
        callbacks=[_At(1, intrude)],
    )

    assert problems == [7]


@pytest.mark.parametrize("executor", ["serial", "processes"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_every_whole_round(
    executor, number, federation, model, settings, tmp_path, same_run
):
    choice = settings(rounds=5, executor=executor, workers=2, checkpoint_every=0)
    run(method("ditto+craft"), federation, model, choice, tmp_path / "whole")
    stop = _At(3, lambda: os.kill(os.getpid(), number))

    with pytest.raises(Interrupted) as caught:
        run(method("ditto+craft"), federation, model, choice, tmp_path / "torn", callbacks=[stop])

    assert caught.value.directory == tmp_path / "torn"
    assert caught.value.round == 3
    assert json.loads((tmp_path / "torn/status.json").read_text())["state"] == "interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    run(method("ditto+craft"), federation, model, choice, tmp_path / "torn", resume=True)
    same_run(tmp_path / "torn", tmp_path / "whole")


def test_ctrl_c_in_the_middle_of_a_phase_ends_it_at_once(federation, model, settings, tmp_path):
    choice = settings(rounds=3, executor="processes", workers=2, local_epochs=10**6)
    subprocess.Popen(["sh", "-c", f"sleep 1; kill -INT {os.getpid()}"])

    with pytest.raises(Interrupted) as caught:
        run(method("fedavg"), federation, model, choice, tmp_path)
    assert caught.value.round == 0
