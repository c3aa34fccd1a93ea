"""AFL: the mixture that climbs the losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedcraft import aggregator, method
from fedcraft.engine.model_average import ModelAverage
from fedcraft.errors import InputError


def _follow(case, relative_error, tolerance, **params):
    rule = aggregator("afl", gamma=case["gamma_lambda"], **params)
    average = ModelAverage("mean")
    average.update(torch.from_numpy(case["theta0"]))  # counts as an iterate in both
    for record in case.rounds:
        step = rule.aggregate(record["updates"], losses=record["losses"], client_ids=record["ids"])
        assert relative_error(step.direction, record["agg"]) < tolerance
        mixture = [rule.mixture[client] for client in record["ids"].tolist()]
        assert relative_error(mixture, record["lambdas_after"]) < tolerance
        found = average.update(torch.from_numpy(record["theta"]))
        assert relative_error(found, record["avg_model"]) < tolerance


@pytest.mark.golden("afl_flgo-*.npz")
def test_afl_reproduces_flgo(golden_case, relative_error):
    _follow(golden_case, relative_error, 1e-11, clients=golden_case["n_clients"])


@pytest.mark.golden("afl_gfedplat-*.npz")
def test_afl_reproduces_gfedplat(golden_case, relative_error):
    _follow(golden_case, relative_error, 5e-6, indexing="position")


@pytest.mark.golden("afl_authors-*.npz")
def test_afl_reproduces_fair_flearns_direction_and_climb(golden_case, relative_error):
    """Its projection is wrong by one, so every round starts from the recorded lambda."""
    gamma = golden_case["gamma_lambda"]
    for record in golden_case.rounds:
        rule = aggregator("afl", gamma=gamma)
        before = torch.from_numpy(record["lambdas_before"])
        state = {"clients": list(range(len(before))), "lambda": before, "rule": "AFL"}
        rule.load_state_dict(state)
        step = rule.aggregate(record["grads"], losses=record["losses"])
        assert relative_error(step.direction, record["direction"]) < 1e-11
        climbed = before.numpy() + gamma * record["losses"]
        assert relative_error(climbed, record["lambdas_unprojected"]) < 1e-11
        assert sum(rule.mixture.values()) == pytest.approx(1, abs=1e-12)


def test_the_rule_and_the_table_of_methods_have_one_gamma():
    assert aggregator("afl").gamma == method("afl").build()[1].gamma == 0.1


def test_the_first_round_is_the_uniform_mean():
    updates = np.random.default_rng(0).normal(size=(4, 3))
    step = aggregator("afl").aggregate(updates, weights=[1, 2, 3, 4], losses=[5, 1, 1, 1])
    np.testing.assert_allclose(step.direction, updates.mean(0), rtol=1e-14)


def test_the_mixture_moves_to_the_client_with_the_largest_loss():
    rule = aggregator("afl", gamma=10.0)
    rule.aggregate(np.eye(3), losses=[0.1, 0.9, 0.1])
    step = rule.aggregate(np.eye(3), losses=[0.1, 0.9, 0.1])
    np.testing.assert_allclose(step.direction, [0, 1, 0], atol=1e-15)


def test_lambda_stays_with_the_client_not_with_its_place():
    rule = aggregator("afl", gamma=10.0, clients=4)
    rule.aggregate(np.eye(2), client_ids=[3, 0], losses=[1.0, 0.0])
    step = rule.aggregate(np.eye(2), client_ids=[0, 3], losses=[0.0, 0.0])
    np.testing.assert_allclose(step.direction, [0, 1], atol=1e-15)
    by_place = aggregator("afl", gamma=10.0, indexing="position")
    by_place.aggregate(np.eye(2), client_ids=[3, 0], losses=[1.0, 0.0])
    step = by_place.aggregate(np.eye(2), client_ids=[0, 3], losses=[0.0, 0.0])
    np.testing.assert_allclose(step.direction, [1, 0], atol=1e-15)


def test_participants_without_weight_are_averaged_uniformly():
    rule = aggregator("afl", gamma=10.0, clients=3)
    rule.aggregate(np.eye(3), losses=[9.0, 0.0, 0.0])
    step = rule.aggregate(np.eye(3)[:2], client_ids=[1, 2], losses=[0.0, 0.0])
    np.testing.assert_allclose(step.direction, [0.5, 0.5, 0.0])


def test_only_sampled_entries_climb_and_all_are_projected():
    rule = aggregator("afl", gamma=0.1, clients=4)
    rule.aggregate(np.eye(2), client_ids=[0, 1], losses=[1.0, 1.0])
    found = rule.mixture
    assert sum(found.values()) == pytest.approx(1)
    assert found[0] == found[1] == pytest.approx(0.30)
    assert found[2] == found[3] == pytest.approx(0.20)


def test_a_client_seen_late_enters_with_the_uniform_value():
    rule = aggregator("afl", gamma=0.0)
    rule.aggregate(np.eye(2), client_ids=["a", "b"], losses=[1, 1])
    rule.aggregate(np.eye(2), client_ids=["b", "c"], losses=[1, 1])
    assert rule.mixture == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})


def test_an_id_beyond_the_known_clients_is_refused():
    with pytest.raises(InputError, match=r"client_ids.*clients=2.*7"):
        aggregator("afl", clients=2).aggregate(np.eye(2), client_ids=[0, 7], losses=[1, 1])


def test_the_iterate_average_continues_from_its_state():
    first, second = ModelAverage("mean"), ModelAverage("mean")
    for value in (1.0, 4.0):
        first.update(torch.tensor([value]))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.update(torch.tensor([7.0])), second.update(torch.tensor([7.0])))
    assert float(second.mean) == 4.0


@pytest.mark.parametrize(("name", "value"), [("gamma", -1), ("clients", 0), ("indexing", "row")])
def test_impossible_parameters_are_refused(name, value):
    with pytest.raises(InputError, match=name):
        aggregator("afl", **{name: value})


def test_an_enormous_loss_takes_the_whole_mixture():
    rule = aggregator("afl", gamma=0.1)
    rule.aggregate(np.eye(2), losses=[1e20, 1.0])
    assert [rule.mixture[client] for client in (0, 1)] == [1.0, 0.0]
