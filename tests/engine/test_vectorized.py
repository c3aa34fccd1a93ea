"""Clients side by side do what they would do alone, up to rounding."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from fedcraft.engine import run
from fedcraft.engine.executors import choose as executors
from fedcraft.engine.executors.job import default_data
from fedcraft.engine.sampling import draw_clients
from fedcraft.engine.simulation import _Setup
from fedcraft.errors import ClientError, ConfigError
from fedcraft.local import ClientData, LocalTask, SeedAddress, local_objective
from fedcraft.local.fast_sgd.vectorized import BatchedModule, GroupTrainer, batched_model
from fedcraft.methods import method
from fedcraft.models.flat import FlatModel

_CPU = torch.device("cpu")


def _close(first, second):
    return (first.vector - second.vector).norm() < 1e-5 * second.vector.norm()


@pytest.fixture(scope="module")
def dropping_model():
    torch.manual_seed(2)
    layers = (nn.Flatten(), nn.Linear(64, 20), nn.Dropout(0.3), nn.ReLU(), nn.Linear(20, 10))
    return nn.Sequential(*layers)


@pytest.mark.parametrize("name", ["craft", "fedprox", "fedfv", "fednova"])
def test_side_by_side_is_one_by_one_up_to_rounding(name, federation, model, settings):
    alone = run(method(name), federation, model, settings(local_epochs=2))
    together = run(
        method(name), federation, model, settings(local_epochs=2, executor="vectorized", workers=1)
    )

    assert _close(together, alone)
    for one, other in zip(together.metrics, alone.metrics, strict=True):
        assert one["local_loss"] == pytest.approx(other["local_loss"], rel=1e-4)


def test_dropout_draws_the_masks_of_each_client_alone(federation, dropping_model, settings):
    alone = run(method("craft"), federation, dropping_model, settings())
    together = run(
        method("craft"), federation, dropping_model, settings(executor="vectorized", workers=1)
    )

    assert _close(together, alone)


def test_the_number_of_workers_does_not_change_the_bits(federation, model, settings, same_bits):
    runs = [
        run(
            method("craft"),
            federation,
            model,
            settings(clients_per_round=9, executor="vectorized", workers=workers),
        )
        for workers in (1, 2, 3)
    ]

    same_bits(runs[0], runs[1])
    same_bits(runs[0], runs[2])


def test_a_resumed_run_ends_like_an_uninterrupted_one(
    federation, model, settings, tmp_path, same_run
):
    choice = {"executor": "vectorized", "workers": 2, "evaluate_every": 0}
    run(method("craft"), federation, model, settings(**choice), tmp_path / "whole")
    run(method("craft"), federation, model, settings(rounds=3, **choice), tmp_path / "torn")
    resumed = run(
        method("craft"), federation, model, settings(**choice), tmp_path / "torn", resume=True
    )

    assert (tmp_path / "whole/model.safetensors").read_bytes() == (
        tmp_path / "torn/model.safetensors"
    ).read_bytes()
    assert resumed.executor == "vectorized"


@pytest.mark.parametrize("name", ["ditto", "fedrep", "perfedavg"])
def test_what_cannot_be_vectorized_says_so(name, federation, model, settings):
    with pytest.raises(ConfigError, match="executor: 'vectorized' takes plain or proximal SGD"):
        run(method(name), federation, model, settings(executor="vectorized"))


def test_auto_chooses_by_shape_and_never_looks_at_a_clock(federation, model, settings, monkeypatch):
    def clock():
        raise AssertionError("a choice by the clock is another one tomorrow")

    for name in ("perf_counter", "process_time", "thread_time"):
        monkeypatch.setattr(time, name, clock)
    many = federation.virtual(4 * len(federation))
    small, large = (nn.Sequential(nn.Linear(64, h), nn.Linear(h, 10)) for h in (8, 400))
    for module, cohort, expected in (
        (small, 32, "vectorized"),
        (small, 31, "serial"),
        (large, 32, "serial"),
    ):
        choice = settings(clients_per_round=cohort, executor="auto", workers=1)
        parts = (default_data, None, None, draw_clients)
        job = _Setup(method("fedavg"), many, module, choice, *parts).job
        assert executors.resolve(choice, job, None) == expected
        assert executors.resolve(choice, job, "processes") == "processes"


@pytest.mark.parametrize("mu", [20.0, 30.0])
def test_a_pull_too_strong_for_groups_is_left_to_single_clients(mu, federation, model, settings):
    """FedProx allows client_lr * mu up to 2, a group less than 1."""
    strong = method("fedprox", local={"mu": mu})
    choice = {"rounds": 20, "workers": 1, "client_lr": 0.05}

    assert run(strong, federation, model, settings(executor="auto", **choice)).executor == "serial"
    with pytest.raises(ConfigError, match=r"client_lr \* mu < 1"):
        run(strong, federation, model, settings(executor="vectorized", **choice))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_group_that_fails_is_called_a_group(workers, federation, model, settings):
    choice = settings(executor="vectorized", workers=workers)

    with pytest.raises(ClientError, match="a group of clients failed in round 1"):
        run(method("fedavg"), federation, model, choice, client_data=_unreadable)


def _unreadable(tensors, rows, client, round_index):
    raise ZeroDivisionError(f"client {client} cannot read its disk")


def test_any_module_can_be_stacked_with_torch_func(federation):
    torch.manual_seed(4)
    module = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip
    assert batched_model(module, _CPU) is None
    group = GroupTrainer(BatchedModule(module), mu=0.5)
    objective, scratch = local_objective("proximal", mu=0.5), FlatModel(module)
    theta, tensors = scratch.vector.clone(), federation.tensors()
    tasks = [
        LocalTask(theta, ClientData(tensors, federation.rows(c)), 0.1, SeedAddress(1, 2, c), 2, 16)
        for c in range(4)
    ]
    rows, alone = torch.empty(2, 4, len(theta))

    results = group.train(tasks, list(rows))

    for task, row, found in zip(tasks, alone, results, strict=True):
        expected = objective.train(scratch, task, row)
        assert found.train_loss == pytest.approx(expected.train_loss, rel=1e-4)
        assert found.steps == pytest.approx(expected.steps)
    assert (rows - alone).norm() < 1e-5 * alone.norm()
