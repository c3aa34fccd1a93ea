"""FedNova's normalised averaging."""

from __future__ import annotations

import numpy as np
import pytest

from fedcraft import aggregator, server_optimizer
from fedcraft.errors import InputError


@pytest.fixture
def updates():
    return np.random.default_rng(3).normal(size=(4, 6))


@pytest.mark.golden("fednova_authors-a_plain.npz", "fednova_authors-a_momentum.npz")
def test_fednova_reproduces_the_authors(golden_case, relative_error):
    rule = aggregator("fednova")
    for record in golden_case.rounds:
        step = rule.aggregate(record["updates"], weights=golden_case["rho"], steps=record["a_norm"])
        assert relative_error(step.direction, record["agg"]) < 1e-6


@pytest.mark.golden("fednova_authors-a_prox.npz")
def test_fednova_counts_steps_for_the_proximal_solver_as_the_authors_do(
    golden_case, relative_error
):
    rule = aggregator("fednova", tau_eff="steps", mu=golden_case["mu"])
    for record in golden_case.rounds:
        step = rule.aggregate(
            record["updates"],
            weights=golden_case["rho"],
            steps=record["a_norm"],
            client_lr=golden_case["eta_l"],
        )
        assert relative_error(step.direction, record["agg"]) < 1e-6


@pytest.mark.golden("fednova_authors-a_server_momentum.npz")
def test_fednovas_server_momentum_is_the_server_optimizer(golden_case, relative_error):
    rule = aggregator("fednova")
    momentum = server_optimizer("momentum", lr=1.0, beta=golden_case["gmf"])
    for record in golden_case.rounds:
        step = rule.aggregate(record["updates"], weights=golden_case["rho"], steps=record["a_norm"])
        assert relative_error(momentum.step(step.direction), record["agg"]) < 1e-6


def _follow_flgo(case, relative_error, weighting):
    rule = aggregator("fednova", weighting=weighting)
    for record in case.rounds:
        step = rule.aggregate(record["updates"], weights=record["n"], steps=record["taus"])
        assert relative_error(step.direction, record["agg"]) < 1e-11


@pytest.mark.golden("fednova_flgo-a_renormalised.npz")
def test_fednova_reproduces_flgo(golden_case, relative_error):
    _follow_flgo(golden_case, relative_error, "data")


@pytest.mark.golden("fednova_flgo-a_uniform.npz")
def test_fednova_reproduces_flgo_with_uniform_weights(golden_case, relative_error):
    _follow_flgo(golden_case, relative_error, "uniform")


def test_equal_steps_give_the_plain_average(updates):
    weights = [4, 3, 2, 1]
    nova = aggregator("fednova").aggregate(updates, weights=weights, steps=[7] * 4)
    plain = aggregator("average").aggregate(updates, weights=weights)
    np.testing.assert_allclose(nova.direction, plain.direction, rtol=1e-13)


def test_a_client_that_did_not_train_is_left_out(updates):
    weights, steps = [4, 3, 2, 1], [5, 0, 2, 1]
    found = aggregator("fednova").aggregate(updates, weights=weights, steps=steps)
    others = [0, 2, 3]
    expected = aggregator("fednova").aggregate(updates[others], weights=[4, 2, 1], steps=[5, 2, 1])
    np.testing.assert_allclose(found.direction, expected.direction, rtol=1e-13)


def test_nobody_trained_means_no_step(updates):
    found = aggregator("fednova").aggregate(updates, steps=[0] * 4)
    np.testing.assert_array_equal(found.direction, np.zeros(6))


def test_only_an_unweighted_client_trained(updates):
    found = aggregator("fednova").aggregate(updates, weights=[1, 0, 1, 1], steps=[0, 2, 0, 0])
    np.testing.assert_allclose(found.direction, updates[1], rtol=1e-14)


def test_steps_are_recovered_from_the_proximal_norm(updates):
    """With equal K_i, tau_eff = K and every g_i is divided by the same A."""
    rate, mu, count = 0.1, 0.5, 4
    norm = (1 - (1 - rate * mu) ** count) / (rate * mu)
    rule = aggregator("fednova", tau_eff="steps", mu=mu)
    found = rule.aggregate(updates, steps=[norm] * 4, client_lr=rate)
    np.testing.assert_allclose(found.direction, updates.mean(0) * count / norm, rtol=1e-12)


def test_the_proximal_form_needs_the_client_rate(updates):
    rule = aggregator("fednova", tau_eff="steps", mu=0.1)
    assert rule.needs == {"steps", "client_lr"}
    with pytest.raises(InputError, match="client_lr"):
        rule.aggregate(updates, steps=[1] * 4)


def test_impossible_numbers_of_steps_are_refused(updates):
    with pytest.raises(InputError, match="steps"):
        aggregator("fednova").aggregate(updates, steps=[1, 1, 1, -1])
    proximal = aggregator("fednova", tau_eff="steps", mu=0.5)
    with pytest.raises(InputError, match="steps"):
        proximal.aggregate(updates, steps=[1, 1, 1, 30], client_lr=0.1)
    with pytest.raises(InputError, match="client_lr"):
        proximal.aggregate(updates, steps=[1] * 4, client_lr=3.0)


@pytest.mark.parametrize(
    ("name", "value"), [("weighting", "size"), ("tau_eff", "max"), ("mu", -1.0)]
)
def test_impossible_parameters_are_refused(name, value):
    with pytest.raises(InputError, match=name):
        aggregator("fednova", **{name: value})
