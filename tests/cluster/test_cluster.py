"""Ray equals serial, bit for bit, whatever becomes of workers and nodes; sweeps likewise.

One cluster for the whole file: to start one takes longer than to use it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fedcraft
from fedcraft import cluster
from fedcraft.cli.app import app
from fedcraft.data import Federation, federate, load
from fedcraft.engine import Callback, Interrupted, Settings, TrainedModel, run
from fedcraft.errors import ClientError
from fedcraft.local import ClientData
from fedcraft.methods import method
from fedcraft.models import build
from fedcraft.runs import Run
from fedcraft.studies.plan import Plan
from fedcraft.studies.sweep import Observer

ray = pytest.importorskip("ray")
Cluster = pytest.importorskip("ray.cluster_utils").Cluster

pytestmark = pytest.mark.slow

STORE = 100 * 2**20
CLIENTS = 20
BRIEF = Settings(
    rounds=4, clients_per_round=8, seed=5, evaluate_every=2, batch_size=20, client_lr=0.1
)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster whose head has two CPUs, and this process connected to it.

    It lives in a folder of its own: in the usual one, whoever starts Ray on this machine finds it
    and joins. A short one: the paths of sockets may not be long.
    """
    head = {"num_cpus": 2, "object_store_memory": STORE, "include_dashboard": False}
    own_folder = TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
    with own_folder as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", place)
        made = Cluster(initialize_head=True, head_node_args=head)
        try:
            with cluster.RayConnection(made.address):
                yield made
        finally:
            made.shutdown()


@pytest.fixture(scope="module")
def federation() -> Federation:
    return federate(load("digits"), "dirichlet", CLIENTS, seed=1, alpha=0.3, min_size=5)


def train(what: str, federation: Federation, executor: str, **options: Any) -> TrainedModel:
    settings = dict(BRIEF)
    changed = {name: options.pop(name) for name in list(options) if name in settings}
    model = build("mlp", input_shape=(1, 8, 8), classes=10, seed=3)  # 55,050 weights: 220 kB a row
    local, _, name = what.rpartition("+")
    now = Settings(**{**settings, "executor": executor, "workers": 2, **changed})
    rule = method(name, local={"name": local} if local else None)
    return run(rule, federation, model, now, **options)


def assert_same_bits(found: TrainedModel, expected: TrainedModel) -> None:
    assert found.round == expected.round
    assert torch.equal(found.vector, expected.vector)
    assert found.scores.keys() == expected.scores.keys()
    for split, scores in expected.scores.items():
        assert (found.scores[split].loss == scores.loss).all()
        assert (found.scores[split].accuracy == scores.accuracy).all()


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("rule", ["craft", "fedavg", "fedfv", "ditto+craft"])
def test_ray_equals_serial_bit_for_bit(rule, federation):
    assert_same_bits(train(rule, federation, "ray"), train(rule, federation, "serial"))


@pytest.mark.usefixtures("nodes")
def test_ten_thousand_clients_two_hundred_a_round(federation):
    many = federation.virtual(10_000)
    options = {"clients_per_round": 200, "rounds": 2, "evaluate_every": 0}
    found = train("craft", many, "ray", **options)
    assert [len(row["clients"]) for row in found.metrics] == [200, 200]
    assert max(found.metrics[0]["clients"]) > CLIENTS
    assert_same_bits(found, train("craft", many, "serial", **options))


@pytest.mark.usefixtures("nodes")
def test_a_client_that_fails_ends_the_run_with_its_own_traceback(federation):
    def broken(tensors, rows, client, round):
        if round == 1:
            raise ZeroDivisionError("the client's own trouble")
        return ClientData(tensors, rows)

    with pytest.raises(ClientError, match=r"client \d+ failed in round 2") as caught:
        train("fedavg", federation, "ray", client_data=broken, workers=1)
    assert "in broken" in str(caught.value)
    assert "ZeroDivisionError: the client's own trouble" in str(caught.value)


@pytest.mark.usefixtures("nodes")
def test_a_worker_that_dies_is_replaced_and_its_clients_are_run_again(federation, tmp_path):
    died = tmp_path / "died"

    def deadly(tensors, rows, client, round):
        if round == 1 and not died.exists():
            died.touch()
            os._exit(1)
        return ClientData(tensors, rows)

    found = train("fedmdfg", federation, "ray", client_data=deadly)
    assert died.exists()
    assert_same_bits(found, train("fedmdfg", federation, "serial"))


def test_a_node_removed_in_the_middle_of_a_round_changes_no_bit(nodes, federation, tmp_path):
    doomed = nodes.add_node(num_cpus=1, object_store_memory=STORE)
    nodes.wait_for_nodes()
    seen = tmp_path / doomed.node_id

    def slow(tensors, rows, client, round):
        if round == 2:
            (tmp_path / ray.get_runtime_context().get_node_id()).touch()
            time.sleep(0.3)
        return ClientData(tensors, rows)

    def remove_when_busy() -> None:
        while not seen.exists():
            time.sleep(0.02)
        nodes.remove_node(doomed, allow_graceful=False)

    killer = threading.Thread(target=remove_when_busy, daemon=True)
    killer.start()
    found = train("craft", federation, "ray", client_data=slow, workers=3)
    killer.join(10)
    assert not killer.is_alive()
    assert len(nodes.worker_nodes) == 0
    assert_same_bits(found, train("craft", federation, "serial"))


@pytest.mark.usefixtures("nodes")
def test_sigterm_saves_a_checkpoint_that_any_executor_continues(federation, tmp_path):
    class Terminate(Callback):
        def on_round(self, record):
            if record["round"] == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="after round 2"):
        train("fedfv", federation, "ray", workers=1, directory=tmp_path, callbacks=[Terminate()])
    resumed = train("fedfv", federation, "serial", directory=tmp_path, resume=True)
    assert_same_bits(resumed, train("fedfv", federation, "serial"))


TINY = {
    "clients": 10,
    "clients_per_round": 4,
    "rounds": 6,
    "evaluate_every": 3,
    "checkpoint_every": 1,
}


class Told(Observer):
    def __init__(self) -> None:
        self.waiting = -1
        self.errors: list[str] = []

    def planned(self, results, waiting):
        self.waiting = waiting

    def ended(self, directory, error):
        self.errors.append(error)


MORTAL = """
import os, pathlib, signal
from torch import nn

calls = 0
killed = pathlib.Path(__file__).with_name("killed")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, images):
        global calls
        calls += 1
        if not killed.exists() and calls == 45:
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if killed.exists():
            killed.write_text(str(calls))
        return self.layer(images.flatten(1))
"""


@pytest.mark.usefixtures("nodes")
def test_a_run_whose_worker_is_killed_continues_from_its_checkpoint(tmp_path, monkeypatch):
    (tmp_path / "mortal.py").write_text(MORTAL)
    monkeypatch.syspath_prepend(tmp_path)
    plan = Plan({**TINY, "model": "mortal:Model"}, {"seed": [1]})
    told, again = Told(), Told()
    (there,) = cluster.sweep(plan, out=tmp_path / "there", observer=told).runs
    calls_after_death = int((tmp_path / "killed").read_text())
    assert (told.waiting, told.errors) == (1, [""])
    assert [record["round"] for record in there.records] == [1, 2, 3, 4, 5, 6]
    here = fedcraft.run(there.config, out=tmp_path / "here")
    assert model_of(there.directory) == model_of(here.directory)
    assert calls_after_death < int((tmp_path / "killed").read_text()) - 20
    cluster.sweep(plan, out=tmp_path / "there", observer=again)
    assert again.waiting == 0


def model_of(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


@pytest.mark.usefixtures("nodes")
def test_the_command_line_sweeps_over_ray(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text("rounds = 2\nclients = 10\nclients_per_round = 4\n[grid]\nseed = [1, 2]\n")
    words = ["sweep", str(plan), "--ray", "auto", "--out", str(tmp_path / "out"), "--no-report"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "out").glob("*/model.safetensors"))) == 2


@pytest.mark.usefixtures("nodes")
def test_an_interrupted_sweep_leaves_checkpoints(tmp_path):
    class Impatient(Observer):
        def progress(self, directory, record):
            if record["round"] >= 1:
                raise KeyboardInterrupt

    long = Plan({**TINY, "rounds": 100_000, "evaluate_every": 0, "diagnostics_every": 0,
                 "checkpoint_every": 0}, {"seed": [1]})  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        cluster.sweep(long, out=tmp_path, observer=Impatient())
    (directory,) = tmp_path.iterdir()
    assert Run(directory).state == "interrupted"
    assert list((directory / "checkpoints").iterdir())
