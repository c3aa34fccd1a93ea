"""Workers that die are replaced; the traceback of a failing client is shown."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from fedcraft.engine import Callback, Interrupted, WorkerError, run
from fedcraft.engine.sampling import draw_clients
from fedcraft.errors import ClientError
from fedcraft.local import ClientData
from fedcraft.methods import method


def _children():
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


def _ended(pid):
    """Tell whether a child is dead, be it still a zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


class _Assassin(Callback):
    """Kills a worker between rounds, as the kernel does when memory runs out."""

    def __init__(self, rounds, *, patient=False):
        self.rounds, self.patient = rounds, patient

    def on_round(self, record):
        if record["round"] in self.rounds:
            victim = _children()[-1]
            os.kill(int(victim), signal.SIGKILL)
            while self.patient and not _ended(victim):
                time.sleep(0.001)


def _suicidal(flag, tensors, rows, client, round_index):
    """Take the worker down in the middle of a round, once."""
    if round_index == 1 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return ClientData(tensors, rows)


def test_workers_killed_between_rounds_are_replaced(federation, model, settings, same_bits):
    choice = settings(rounds=5, executor="processes", workers=2)
    attacked = run(
        method("ditto+craft"), federation, model, choice, callbacks=[_Assassin({1, 2, 4})]
    )

    same_bits(attacked, run(method("ditto+craft"), federation, model, settings(rounds=5)))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_found_dead_when_a_round_begins_is_replaced(
    workers, federation, model, settings, same_bits
):
    choice = settings(rounds=5, executor="processes", workers=workers)
    assassin = _Assassin({1, 2, 4}, patient=True)
    attacked = run(method("ditto+craft"), federation, model, choice, callbacks=[assassin])

    same_bits(attacked, run(method("ditto+craft"), federation, model, settings(rounds=5)))


def test_a_sigterm_to_the_whole_group_is_the_servers_to_answer(
    federation, model, settings, tmp_path
):
    strangers, survivors = set(_children()), []

    def terminated(asked, clients, index):
        if index == 2:
            workers = [pid for pid in _children() if pid not in strangers]
            for pid in (*workers, os.getpid()):
                os.kill(int(pid), signal.SIGTERM)
            time.sleep(0.1)
            survivors.extend(not _ended(pid) for pid in workers)
        return draw_clients(asked, clients, index)

    choice = settings(executor="processes", workers=2, checkpoint_every=0)
    with pytest.raises(Interrupted) as caught:
        run(method("craft"), federation, model, choice, tmp_path, sampler=terminated)

    assert survivors == [True, True]
    assert caught.value.round == 2
    assert (tmp_path / "checkpoints/round-000002").is_dir()


_FORGETFUL = """
import threading
from fedcraft.data import federate, load
from fedcraft.engine import Callback, Settings, run
from fedcraft.methods import method
from fedcraft.models import build

data = federate(load("digits"), "iid", clients=4, seed=1)
model = build("mlp", input_shape=data.dataset.input_shape, classes=10, hidden=(4,))
choice = Settings(rounds=10**6, clients_per_round=2, executor="processes", workers=2)
begun = threading.Event()

class Begun(Callback):
    def on_round(self, record):
        begun.set()

work = lambda: run(method("fedavg"), data, model, choice, callbacks=[Begun()])
threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


def test_a_program_that_ends_in_the_middle_of_a_run_takes_its_workers_along():
    # It would wait for them for ever: they ignore the SIGTERM that Python ends daemons with.
    subprocess.run([sys.executable, "-c", _FORGETFUL], timeout=100, check=True)


def _unready(*args, **kwargs):
    raise ZeroDivisionError("no runner today")


def test_a_worker_that_cannot_start_says_why(federation, model, settings, monkeypatch, capfd):
    monkeypatch.setattr("fedcraft.engine.executors.worker.UnitRunner", _unready)
    with pytest.raises(WorkerError, match="exit code 1"):
        run(method("fedavg"), federation, model, settings(executor="processes", workers=2))

    assert "no runner today" in capfd.readouterr().err


def test_a_worker_killed_in_a_round_is_replaced_and_its_clients_run_again(
    federation, model, settings, same_bits, tmp_path
):
    choice = settings(rounds=3, executor="processes", workers=2)
    attacked = run(
        method("ditto+craft"),
        federation,
        model,
        choice,
        client_data=partial(_suicidal, tmp_path / "flag"),
    )

    assert (tmp_path / "flag").exists()
    same_bits(attacked, run(method("ditto+craft"), federation, model, settings(rounds=3)))


def _always_suicidal(tensors, rows, client, round_index):
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_that_keep_dying_are_an_error(federation, model, settings):
    choice = settings(executor="processes", workers=2)

    with pytest.raises(WorkerError, match=r"exit code -9.*memory"):
        run(method("fedavg"), federation, model, choice, client_data=_always_suicidal)


def _broken(tensors, rows, client, round_index):
    if client in (4, 11) and round_index == 1:
        raise ZeroDivisionError(f"client {client} cannot read its disk")
    return ClientData(tensors, rows)


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_a_clients_own_traceback_comes_first(federation, model, settings, executor, tmp_path):
    choice = settings(clients_per_round=20, executor=executor, workers=1)

    with pytest.raises(ClientError) as caught:
        run(method("fedavg"), federation, model, choice, tmp_path, client_data=_broken)

    lines = str(caught.value).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert any("in _broken" in line for line in lines)
    assert lines[-1] in ("client 4 failed in round 2", "client 11 failed in round 2")
    assert "cannot read its disk" in lines[-3]
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1


class _Noisy(nn.Module):
    """A user's own module: dropout, a buffer, and no chain of known layers."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU())
        self.head = nn.Linear(12, 10)

    def forward(self, inputs):
        return self.head(nn.functional.dropout(self.body(inputs.flatten(1)), 0.2, self.training))


def test_any_module_trains_alike_in_every_executor_buffers_included(
    federation, settings, same_bits
):
    torch.manual_seed(1)
    module = _Noisy()
    whole = {"batch_size": 500}  # BatchNorm refuses a last batch of one
    executor = settings(executor="processes", workers=2, **whole)
    alone = run(method("craft"), federation, module, settings(**whole))
    together = run(method("craft"), federation, module, executor)

    same_bits(alone, together)
    for name, value in alone.tensors.items():
        assert torch.equal(value, together.tensors[name])
    moved = alone.tensors["body.1.running_mean"]
    assert moved.abs().max() > 0
    assert torch.equal(
        run(method("craft"), federation, module, settings(buffers="keep", **whole)).tensors[
            "body.1.running_mean"
        ],
        torch.zeros(12),
    )


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_a_state_too_large_to_be_sent_stays_in_a_serial_run(
    executor, federation, model, settings, monkeypatch
):
    choice = settings(rounds=3, executor=executor, workers=2)
    roomy = run(method("ditto"), federation, model, choice)
    monkeypatch.setattr("fedcraft.engine.executors.job._STATE_FACTOR", 0)

    if executor == "processes":
        with pytest.raises(ClientError, match=r"exceeds the .* use executor='serial'"):
            run(method("ditto"), federation, model, choice)
    else:
        assert torch.equal(run(method("ditto"), federation, model, choice).vector, roomy.vector)


def test_a_model_can_be_given_as_a_function(federation, model, settings, same_bits):
    same_bits(
        run(method("fedavg"), federation, lambda: copy.deepcopy(model), settings(rounds=1)),
        run(method("fedavg"), federation, model, settings(rounds=1)),
    )


def test_a_run_leaves_no_process_behind(federation, model, settings):
    before = set(_children())
    run(method("fedavg"), federation, model, settings(executor="processes", workers=2))

    assert set(_children()) <= before
