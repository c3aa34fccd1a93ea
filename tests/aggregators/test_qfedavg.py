"""q-FedAvg against three implementations, and where they break."""

from __future__ import annotations

import numpy as np
import pytest

from fedcraft import aggregator
from fedcraft.errors import InputError


def _follow(case, relative_error, tolerance, **params):
    rule = aggregator("qfedavg", q=case["q"], **params)
    for record in case.rounds:
        step = rule.aggregate(record["updates"], losses=record["losses"], client_lr=case["eta_l"])
        assert relative_error(step.direction, record["agg"]) < tolerance


@pytest.mark.golden("qfedavg_flwr-*.npz", "qfedavg_authors-*.npz")
def test_qfedavg_reproduces_flower_and_the_authors(golden_case, relative_error):
    _follow(golden_case, relative_error, 1e-10)


@pytest.mark.golden("qfedavg_flgo-*.npz")
def test_qfedavg_reproduces_flgo_with_its_loss_offset(golden_case, relative_error):
    _follow(golden_case, relative_error, 1e-10, loss_offset=1e-8)


@pytest.mark.golden("qfedavg_gfedplat-*.npz")
def test_qfedavg_reproduces_gfedplat(golden_case, relative_error):
    _follow(golden_case, relative_error, 2e-5)


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 2.0])
def test_flowers_own_client_terms_give_the_same_step(q):
    strategy = pytest.importorskip("flwr.serverapp.strategy.qfedavg")
    draw = np.random.default_rng(5)
    theta, updates = draw.normal(size=7), draw.normal(size=(4, 7))
    losses, rate = draw.uniform(0.1, 3, size=4), 0.05
    terms = [
        strategy.compute_delta_and_h([theta], [theta - g], q, 1 / rate, loss)
        for g, loss in zip(updates, losses, strict=True)
    ]
    expected = sum(delta[0] for delta, _ in terms) / sum(h for _, h in terms)
    step = aggregator("qfedavg", q=q).aggregate(updates, losses=losses, client_lr=rate)
    np.testing.assert_allclose(step.direction, expected, rtol=1e-11)


def test_q_zero_is_the_uniform_mean():
    updates = np.random.default_rng(0).normal(size=(5, 4))
    step = aggregator("qfedavg", q=0.0).aggregate(
        updates, weights=[1, 2, 3, 4, 5], losses=[0, 1, 2, 3, 4], client_lr=0.1
    )
    np.testing.assert_allclose(step.direction, updates.mean(0), rtol=1e-14)


def test_a_large_q_follows_the_worst_client_without_overflow():
    updates = np.eye(3, dtype=np.float32)
    step = aggregator("qfedavg", q=500.0).aggregate(updates, losses=[1.0, 50.0, 2.0], client_lr=0.1)
    expected = 1 / (1 + 500 / 50 / 0.1)
    np.testing.assert_allclose(step.direction, [0, expected, 0], rtol=1e-6, atol=1e-30)


def test_the_floor_keeps_a_solved_client_from_stopping_all_clients():
    updates, losses = np.eye(2), [0.0, 1.0]
    stalled = aggregator("qfedavg").aggregate(updates, losses=losses, client_lr=1.0)
    floored = aggregator("qfedavg", loss_floor=1e-3).aggregate(
        updates, losses=losses, client_lr=1.0
    )
    assert np.linalg.norm(stalled.direction) < 1e-7
    assert np.linalg.norm(floored.direction) > 1e-3


def test_a_zero_update_still_counts_in_the_step_size():
    updates = np.array([[1.0, 0.0], [0.0, 0.0]])
    step = aggregator("qfedavg", q=0.0).aggregate(updates, losses=[1, 1], client_lr=0.1)
    np.testing.assert_allclose(step.direction, [0.5, 0.0])


@pytest.mark.parametrize("losses", [[-0.1, 1.0], [0.0, 1.0]])
def test_losses_without_a_power_are_refused(losses):
    rule = aggregator("qfedavg", loss_offset=0.0)
    with pytest.raises(InputError, match="losses"):
        rule.aggregate(np.eye(2), losses=losses, client_lr=0.1)


@pytest.mark.parametrize("name", ["q", "loss_offset", "loss_floor"])
def test_impossible_parameters_are_refused(name):
    with pytest.raises(InputError, match=name):
        aggregator("qfedavg", **{name: -1.0})
