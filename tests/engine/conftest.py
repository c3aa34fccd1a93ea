"""A small real federation, a small model, and how to compare two runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.torture import TIMES, tables
from fedcraft.data import federate, load
from fedcraft.engine import Settings
from fedcraft.models import build


@pytest.fixture(scope="session")
def federation():
    return federate(load("digits"), "dirichlet", clients=20, alpha=0.5, seed=7)


@pytest.fixture(scope="session")
def model(federation):
    shape = federation.dataset.input_shape
    return build("mlp", input_shape=shape, classes=10, hidden=(16,), seed=3)


@pytest.fixture
def settings():
    """Return a maker of settings: short runs, in this process unless told otherwise."""

    def make(**changes):
        base = {
            "rounds": 6,
            "clients_per_round": 5,
            "batch_size": 16,
            "evaluate_every": 3,
            "executor": "serial",
            "checkpoint_every": 2,
            "start_method": "fork",
        }
        return Settings(**(base | changes))

    return make


def assert_same_run(first: Path, second: Path) -> None:
    """Two run directories hold the same bits: tables and final weights."""
    assert tables(first) == tables(second)
    models = [(path / "model.safetensors").read_bytes() for path in (first, second)]
    assert models[0] == models[1]


@pytest.fixture
def same_run():
    return assert_same_run


@pytest.fixture
def run_tables():
    return tables


@pytest.fixture
def same_bits():
    def check(first, second):
        assert torch.equal(first.vector, second.vector)
        rows = [
            [{k: v for k, v in row.items() if k not in TIMES} for row in result.metrics]
            for result in (first, second)
        ]
        assert rows[0] == rows[1]

    return check
