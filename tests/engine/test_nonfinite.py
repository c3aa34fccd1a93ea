"""A client that sends NaN or Inf: named, dropped, or the end of the run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedcraft.engine import run
from fedcraft.engine.sampling import SampledClients
from fedcraft.errors import NonFiniteError
from fedcraft.local import ClientData
from fedcraft.methods import method


class _Poisoned(ClientData):
    """A client whose inputs are not numbers."""

    def epoch(self, draw):
        inputs, labels = super().epoch(draw)
        return inputs * float("nan"), labels


def _poison(*victims):
    def data(tensors, rows, client, round_index):
        return (_Poisoned if client in victims else ClientData)(tensors, rows)

    return data


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_a_client_that_sends_nan_fails_the_round_by_name(federation, model, settings, executor):
    # A function made in a test cannot be sent to a process that was not forked.
    everybody = settings(clients_per_round=20, executor=executor, workers=2, start_method="fork")

    with pytest.raises(NonFiniteError, match=r"round 1: NaN or Inf .* client\(s\) \[3, 7\]"):
        run(method("craft"), federation, model, everybody, client_data=_poison(3, 7))


def test_dropping_a_client_that_sends_nan_is_as_if_it_had_not_come(federation, model, settings):
    choice = settings(rounds=2, clients_per_round=20, nonfinite="drop")
    poisoned = run(method("craft"), federation, model, choice, client_data=_poison(3))
    without = run(
        method("craft"),
        federation,
        model,
        choice,
        sampler=lambda s, n, t: _all_but(3, n),
    )

    assert poisoned.metrics[0]["dropped"] == [3]
    assert torch.equal(poisoned.vector, without.vector)


def _all_but(client, count):
    return SampledClients(np.delete(np.arange(count), client), np.empty(0, np.int64))


class _Loud(ClientData):
    """A client whose inputs are finite, and their variance is not."""

    def epoch(self, draw):
        inputs, labels = super().epoch(draw)
        return inputs * 1e25, labels


def _loud(tensors, rows, client, round_index):
    return (_Loud if client == 3 else ClientData)(tensors, rows)


@pytest.fixture
def normed():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))


def test_a_client_whose_buffers_alone_are_not_finite_is_dropped(federation, normed, settings):
    choice = settings(rounds=2, clients_per_round=20, batch_size=500, nonfinite="drop")
    loud = run(method("craft"), federation, normed, choice, client_data=_loud)
    without = run(
        method("craft"), federation, normed, choice, sampler=lambda s, n, t: _all_but(3, n)
    )

    assert [row["dropped"] for row in loud.metrics] == [[3], [3]]
    for name, tensor in loud.tensors.items():
        assert torch.equal(tensor, without.tensors[name])
        assert bool(tensor.isfinite().all())


def test_buffers_that_stay_with_their_client_may_be_anything(federation, normed, settings):
    choice = settings(rounds=1, clients_per_round=20, batch_size=500, buffers="keep")
    kept = run(method("craft"), federation, normed, choice, client_data=_loud)

    assert kept.metrics[0]["clients"] == list(range(20))
    assert torch.equal(kept.tensors["1.running_var"], torch.ones(64))


def test_a_buffer_that_is_infinite_from_the_start_is_not_a_fault(federation, model, settings):
    masked = nn.Sequential(*model)
    masked.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    result = run(method("craft"), federation, masked, settings(rounds=1))

    assert result.tensors["mask"].tolist() == [0.0, -torch.inf]


def test_a_run_can_end_in_order_when_a_client_sends_nan(federation, model, settings):
    choice = settings(rounds=9, clients_per_round=20, nonfinite="stop")
    ended = run(method("craft"), federation, model, choice, client_data=_poison(3))

    assert ended.state == "stopped"
    assert "finite" in ended.reason
    assert "client(s) [3]" in ended.reason
    assert bool(ended.vector.isfinite().all())


def _poison_from(first):
    def data(tensors, rows, client, round_index):
        return (_Poisoned if round_index >= first else ClientData)(tensors, rows)

    return data


@pytest.mark.parametrize("good", [0, 1, 2, 3])
def test_a_run_that_ends_on_nan_is_judged_by_its_last_whole_round(
    good, federation, model, settings, tmp_path
):
    choice = settings(rounds=9, evaluate_every=2, nonfinite="stop", checkpoint_every=1)
    options = {"client_data": _poison_from(good)}
    ended = run(method("craft"), federation, model, choice, tmp_path, **options)
    again = run(method("craft"), federation, model, choice, tmp_path, resume=True, **options)

    for result in (ended, again):
        assert (result.state, result.round) == ("stopped", good)
        assert [row["round"] for row in result.metrics] == (list(range(1, good + 1)) or [0])
        mean = result.metrics[-1]["evaluation"]["mean"]
        assert mean == result.evaluation["mean"] == result.scores["test"].accuracy.mean()
    if good:
        whole = run(method("craft"), federation, model, settings(rounds=good))
        assert ended.evaluation == whole.evaluation
        assert ended.metrics[-1]["clients"] == whole.metrics[-1]["clients"]
    assert (tmp_path / "clients.csv").read_text().splitlines()[-1].startswith(f"{good},")


def test_a_run_that_diverges_ends_in_order(federation, model, settings, tmp_path):
    wild = settings(client_lr=1000.0, evaluate_every=0, nonfinite="stop", local_epochs=3)
    diverging = method("fedprox", local={"mu": 100.0})  # far beyond lr * mu < 2
    ended = run(diverging, federation, model, wild, tmp_path)

    assert ended.state == "stopped"
    assert ended.reason.startswith("not finite")
    assert 0 <= ended.evaluation["mean"] <= 1


def test_a_personal_model_that_is_not_finite_is_not_kept(federation, model, settings):
    ditto = method("ditto", local={"lam": 1e20})  # far beyond lr * lam < 2

    with pytest.raises(NonFiniteError, match="state of client"):
        run(ditto, federation, model, settings(local_epochs=3))
