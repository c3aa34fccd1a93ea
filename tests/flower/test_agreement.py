"""The same numbers from the simulator, from ``flwr run``, and from a real federation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from real import APPS, Simulation, WarmFederation
from safetensors.torch import load_file
from torch import Tensor

from fedcraft.engine import Settings
from fedcraft.engine.simulation import run
from fedcraft.methods import method

sys.path.insert(0, str(APPS / "agreement"))
from agreement import task

METHODS = ("craft", "fedavg", "fedadam", "fedfv", "ditto+craft", "craft-auto")
ROUNDS = 5
PATIENCE = 900  # seconds, for a machine with better things to do

pytestmark = pytest.mark.slow


def _simulate(name: str) -> dict[str, Tensor]:
    settings = Settings(
        rounds=ROUNDS,
        clients_per_round=task.CLIENTS,
        client_lr=task.CLIENT_LR,
        server_lr=method(name).server_lr,
        seed=task.SEED,
        executor="serial",
    )
    return run(method(name), task.federation(), task.model, settings).tensors


@pytest.fixture(scope="module")
def simulator() -> dict[str, dict[str, Tensor]]:
    return {name: _simulate(name) for name in METHODS}


@pytest.fixture(scope="module")
def flower_simulation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("simulation")
    with Simulation(home) as federation:
        federation.start_link()
        config = {"methods": " ".join(METHODS), "rounds": ROUNDS, "out": str(home / "out")}
        nodes = f"num-supernodes={task.CLIENTS} client-resources-num-cpus=1"
        federation.run(APPS / "agreement", config, "--federation-config", nodes).wait(PATIENCE)
        (home / "run.log").write_text(federation.log("run"))
    return home


@pytest.fixture(scope="module")
def flower_deployment(
    real_federation: WarmFederation, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    home = tmp_path_factory.mktemp("deployment")
    config = {"methods": " ".join(METHODS), "rounds": ROUNDS, "out": str(home / "out")}
    run = real_federation.run(APPS / "agreement", config, name="agreement")
    run.wait(PATIENCE)
    (home / "run.log").write_text(real_federation.log("agreement"))
    return home


def _assert_same_bits(home: Path, name: str, expected: dict[str, Tensor]) -> None:
    path = home / "out" / name / "model.safetensors"
    assert path.exists(), (home / "run.log").read_text()
    found = load_file(path)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), (name, key, float((found[key] - value).abs().max()))


@pytest.mark.parametrize("name", METHODS)
def test_flwr_run_in_simulation_ends_with_the_simulators_bits(
    name: str, simulator: dict[str, dict[str, Tensor]], flower_simulation: Path
) -> None:
    _assert_same_bits(flower_simulation, name, simulator[name])


@pytest.mark.parametrize("name", METHODS)
def test_superlink_and_supernodes_with_tls_end_with_the_simulators_bits(
    name: str, simulator: dict[str, dict[str, Tensor]], flower_deployment: Path
) -> None:
    _assert_same_bits(flower_deployment, name, simulator[name])
