"""What every local objective promises, whatever it computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedcraft.data import Tensors
from fedcraft.errors import InputError, StateError
from fedcraft.local import (
    OBJECTIVES,
    ClientData,
    LocalResult,
    SeedAddress,
)
from fedcraft.models import FlatModel

Lab = Any  # the fixture of conftest.py
every_objective = pytest.mark.parametrize("name", list(OBJECTIVES))


def same(first: LocalResult, second: LocalResult) -> bool:
    plain = replace(first, state=None, buffers=None) == replace(second, state=None, buffers=None)
    states = (first.state or {}, second.state or {})
    keys = states[0].keys() == states[1].keys()
    return plain and keys and all(torch.equal(states[0][k], states[1][k]) for k in states[0])


@every_objective
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_same_task_gives_the_same_bits(name: str, dropout: float, lab: Lab) -> None:
    asked = lab.task(lab.network(dropout=dropout), lab.client(), epochs=2, report_loss=True)
    row, result = lab.train(name, lab.network(dropout=dropout), asked)
    torch.rand(7)
    used = lab.network(dropout=dropout)
    lab.train(name, used, replace(asked, address=SeedAddress(1, 1, 1), lr=0.3))
    used.eval()
    again, repeated = lab.train(name, used, asked)
    assert torch.equal(row, again)
    assert same(result, repeated)
    assert torch.isfinite(row).all()
    assert row.any()


@every_objective
def test_no_global_generator_moves(name: str, lab: Lab) -> None:
    asked = lab.task(lab.network(dropout=0.5), lab.client())
    module = lab.network(dropout=0.5)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    lab.train(name, module, asked)
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002


@every_objective
@pytest.mark.parametrize("part", ["run_seed", "round", "client"])
def test_every_part_of_the_address_matters(name: str, part: str, lab: Lab) -> None:
    asked = lab.task(lab.network(), lab.client())
    elsewhere = replace(asked, address=asked.address._replace(**{part: 4}))
    assert not torch.equal(
        lab.train(name, lab.network(), asked)[0], lab.train(name, lab.network(), elsewhere)[0]
    )


def test_dropout_follows_the_address(lab: Lab) -> None:
    whole = lab.client(samples=8)  # one batch: a shuffle alone changes rounding, not directions
    asked = lab.task(lab.network(dropout=0.5), whole)
    elsewhere = replace(asked, address=SeedAddress(77, 4, 12))
    first, second = (lab.train("plain", lab.network(dropout=0.5), t)[0] for t in (asked, elsewhere))
    assert torch.cosine_similarity(first, second, dim=0) < 0.99


@every_objective
def test_inputs_are_left_as_they_were(name: str, lab: Lab) -> None:
    asked = lab.task(lab.network(), lab.client())
    _, result = lab.train(name, lab.network(), asked)
    theta, inputs = asked.theta.clone(), lab.digits.inputs.clone()
    kept = {key: value.clone() for key, value in (result.state or {}).items()}
    lab.train(name, lab.network(), replace(asked, state=result.state))
    assert torch.equal(theta, asked.theta)
    assert torch.equal(inputs, lab.digits.inputs)
    assert all(torch.equal(kept[key], result.state[key]) for key in kept)


@every_objective
def test_buffers_are_reported_and_given_back(name: str, lab: Lab) -> None:
    module = lab.network(norm=True)
    asked = lab.task(lab.network(norm=True), lab.client(32))
    broadcast = {key: value + 1 for key, value in FlatModel(module).buffers().items()}
    before = FlatModel(module).buffers()
    _, result = lab.train(name, module, replace(asked, buffers=broadcast))
    after = FlatModel(module).buffers()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert result.buffers is not None
    assert not torch.equal(result.buffers["1.running_mean"], broadcast["1.running_mean"])
    assert result.buffers["1.num_batches_tracked"] > 1
    assert lab.train(name, lab.network(), lab.task(lab.network(), lab.client()))[1].buffers is None


@every_objective
@pytest.mark.parametrize(("samples", "batch_size"), [(1, 8), (5, 50), (9, 8)])
def test_small_clients_train(name: str, samples: int, batch_size: int, lab: Lab) -> None:
    asked = lab.task(lab.network(), lab.client(samples), batch_size=batch_size, report_loss=True)
    row, result = lab.train(name, lab.network(), asked)
    assert torch.isfinite(row).all()
    assert result.samples == samples
    assert result.loss is not None
    assert np.isfinite([result.loss, result.train_loss]).all()


@every_objective
def test_float64_models_train_in_float64(name: str, lab: Lab) -> None:
    wide = ClientData.of(lab.digits.inputs[:20].double(), lab.digits.labels[:20])
    row, _ = lab.train(name, lab.network().double(), lab.task(lab.network().double(), wide))
    assert row.dtype == torch.float64
    assert row.any()


@pytest.mark.parametrize("name", ["plain", "proximal", "ditto", "perfedavg"])
def test_no_epoch_means_no_movement(name: str, lab: Lab) -> None:
    row, result = lab.train(name, lab.network(), lab.task(lab.network(), lab.client(), epochs=0))
    assert not row.any()
    assert result.steps == 0
    assert np.isnan(result.train_loss)


def test_the_last_short_batch_is_kept(lab: Lab) -> None:
    asked = lab.task(lab.network(), lab.client(33), epochs=2)
    sizes = [len(labels) for _, labels in asked.batches()]
    assert sizes == [8, 8, 8, 8, 1] * 2
    assert lab.train("plain", lab.network(), asked)[1].steps == 2 * asked.batches_per_epoch == 10


def test_an_epoch_serves_every_sample_once_in_its_own_order(lab: Lab) -> None:
    data = ClientData(Tensors(lab.digits.inputs, torch.arange(len(lab.digits))), np.arange(40, 73))
    asked = lab.task(lab.network(), data, epochs=2)
    served = torch.cat([labels for _, labels in asked.batches()])
    first, second = served[:33], served[33:]
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(40, 73))
    assert first.tolist() != second.tolist() != list(range(40, 73))


def test_the_loss_at_theta_is_the_mean_over_the_training_part(lab: Lab) -> None:
    data = lab.client(1203)  # more than one piece
    asked = lab.task(lab.network(dropout=0.5), data, report_loss=True)
    _, result = lab.train("plain", lab.network(dropout=0.5), asked)
    inputs, labels = data.whole()
    with torch.no_grad():
        expected = nn.functional.cross_entropy(lab.network(dropout=0.5).eval()(inputs), labels)
    assert result.loss == pytest.approx(float(expected), rel=1e-5)
    assert lab.train("plain", lab.network(), replace(asked, report_loss=False))[1].loss is None


def test_a_state_of_another_objective_is_refused(lab: Lab) -> None:
    foreign = {"head": torch.zeros(170)}
    with pytest.raises(StateError, match="client 12: expected 'personal', found"):
        lab.train("ditto", lab.network(), lab.task(lab.network(), lab.client(), state=foreign))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": -0.1}, "lr: expected"),
        ({"lr": float("nan")}, "lr: expected"),
        ({"epochs": -1}, "epochs: expected"),
        ({"batch_size": 0}, "batch_size: expected"),
    ],
)
def test_an_impossible_task_is_refused(given: Any, message: str, lab: Lab) -> None:
    with pytest.raises(InputError, match=message):
        lab.task(lab.network(), lab.client(), **given)


def test_a_client_without_samples_is_refused(lab: Lab) -> None:
    with pytest.raises(InputError, match="client 12 has no training sample"):
        lab.task(lab.network(), lab.client(0))
