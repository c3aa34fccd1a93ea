"""TERM, and the servers of SCAFFOLD and FedDyn, against loops that follow their papers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedcraft
from fedcraft import aggregator
from fedcraft.errors import ConfigError, InputError
from fedcraft.updates import RoundContext


def drawn(seed, clients=4, width=6):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(clients, width)), draw.uniform(0.2, 3, size=clients)


@pytest.mark.parametrize("tilt", [-2.0, 0.0, 0.5, 3.0])
def test_term_is_the_gradient_of_the_tilted_loss(tilt):
    """With linear losses F_i = <g_i, theta> + b_i autograd gives the oracle."""
    rows, losses = drawn(0)
    sizes = np.array([1.0, 2.0, 3.0, 4.0])
    shares = torch.from_numpy(sizes / sizes.sum())
    theta = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    values = torch.from_numpy(rows) @ theta + torch.from_numpy(losses)
    tilted = shares @ values
    if tilt:
        tilted = torch.logsumexp(tilt * values + shares.log(), 0) / tilt
    (expected,) = torch.autograd.grad(tilted, theta)
    found = aggregator("term", tilt=tilt).aggregate(rows, weights=sizes, losses=losses)
    np.testing.assert_allclose(found.direction, expected.numpy(), rtol=1e-12)


def test_a_large_tilt_follows_the_worst_client_without_overflow():
    step = aggregator("term", tilt=1e6).aggregate(np.eye(3), losses=[1.0, 50.0, 2.0])
    np.testing.assert_allclose(step.direction, [0, 1, 0])


def test_term_refuses_what_is_not_a_tilt():
    with pytest.raises(InputError, match="tilt"):
        aggregator("term", tilt=float("inf"))


def in_population(rule, clients, rate=0.1):
    rule.context = RoundContext(torch.zeros(6), 0, 5, rate, 1.0, clients=clients)
    return rule


def test_scaffold_sends_the_mean_of_all_control_variates():
    """The paper's bookkeeping, with every c_i written down; 3 of 5 clients take part at a time."""
    rate, clients = 0.1, 5
    rule = in_population(aggregator("scaffold"), clients, rate)
    own, server = np.zeros((clients, 6)), np.zeros(6)
    for number, cohort in enumerate(([0, 1, 2], [2, 3, 4], [0, 3, 4])):
        rows, _ = drawn(number, 3)
        steps = np.array([2.0, 3.0, 5.0])
        found = rule.aggregate(rows, client_ids=cohort, steps=steps, client_lr=rate)
        new = own[cohort] - server + rows / (steps * rate)[:, None]
        server = server + (new - own[cohort]).sum(0) / clients
        own[cohort] = new
        np.testing.assert_allclose(found.direction, rows.mean(0), rtol=1e-12)
        np.testing.assert_allclose(rule.sent["control"].numpy(), server, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(server, own.mean(0), atol=1e-12)


def test_a_client_that_took_no_step_leaves_the_control_variate():
    rule = aggregator("scaffold", clients=2)
    rule.aggregate(np.eye(2), steps=[1, 1], client_lr=1.0)
    before = rule.sent["control"].clone()
    rule.aggregate(np.zeros((1, 2)), steps=[0], client_lr=1.0)
    assert torch.equal(rule.sent["control"], before)


def test_feddyn_moves_to_the_mean_model_minus_the_mean_of_all_gradients():
    """Algorithm 1 of Acar et al., with the server's h and alpha written out."""
    clients, alpha = 5, 0.1
    rule = in_population(aggregator("feddyn"), clients)
    theta, h = np.zeros(6), np.zeros(6)
    for number in range(3):
        rows, _ = drawn(number, 3)
        models = theta - rows
        found = rule.aggregate(rows)
        h = h - alpha * (models - theta).sum(0) / clients
        expected = models.mean(0) - h / alpha
        theta = theta - found.direction
        np.testing.assert_allclose(theta, expected, rtol=1e-9, atol=1e-12)


def test_scaffolds_clients_need_scaffolds_rule(tmp_path):
    wrong = {"local": {"name": "scaffold"}, "clients": 6, "clients_per_round": 3, "rounds": 1}
    with pytest.raises(ConfigError, match=r"needs control from .* use the rule 'scaffold'"):
        fedcraft.run(method="fedavg", out=tmp_path, **wrong)


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_population_is_a_positive_number(name):
    with pytest.raises(InputError, match="clients"):
        aggregator(name, clients=0)
