"""FedMGDA+: the shortest mixture of unit updates within a box around the data weights."""

from __future__ import annotations

import numpy as np
import pytest

from fedcraft import aggregator
from fedcraft.errors import InputError


@pytest.fixture
def updates():
    return np.random.default_rng(11).normal(size=(4, 6)) + 0.5


def _unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.golden("fedmgda_flgo-*.npz")
def test_fedmgda_reproduces_flgo(golden_case, relative_error):
    rule = aggregator("fedmgda", epsilon=golden_case["epsilon"], norm_offset=1e-8)
    for record in golden_case.rounds:
        step = rule.aggregate(record["updates"], weights=record["n"])
        assert relative_error(golden_case["eta_g"] * step.direction, record["agg"]) < 1e-6


@pytest.mark.golden("fedmgda_gfedplat-*.npz")
def test_fedmgda_reproduces_gfedplat(golden_case, relative_error):
    rule = aggregator("fedmgda", epsilon=golden_case["epsilon"], scale="client_lr")
    for record in golden_case.rounds:
        step = rule.aggregate(
            record["updates"], weights=record["n"], client_lr=golden_case["eta_l"]
        )
        assert relative_error(step.direction, record["agg"]) < 5e-5


def test_epsilon_zero_is_the_weighted_mean_of_unit_updates(updates):
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    step = aggregator("fedmgda", epsilon=0.0).aggregate(updates, weights=weights)
    np.testing.assert_allclose(step.direction, weights @ _unit(updates), rtol=1e-12)


def test_a_wide_box_conflicts_with_no_client(updates):
    step = aggregator("fedmgda", epsilon=1.0).aggregate(updates)
    square = step.direction @ step.direction
    assert (_unit(updates) @ step.direction >= square - 1e-12).all()


def test_the_box_is_respected(updates):
    weights, epsilon = np.array([0.7, 0.1, 0.1, 0.1]), 0.05
    step = aggregator("fedmgda", epsilon=epsilon).aggregate(updates, weights=weights)
    mixture = np.linalg.lstsq(_unit(updates).T, step.direction, rcond=None)[0]
    assert mixture.sum() == pytest.approx(1)
    assert np.abs(mixture - weights).max() <= epsilon + 1e-12


def test_zero_updates_are_dropped_and_the_weights_renormalised(updates):
    with_zero = np.vstack([updates, np.zeros(6)])
    rule = aggregator("fedmgda")
    found = rule.aggregate(with_zero, weights=[1, 2, 3, 4, 90])
    expected = rule.aggregate(updates, weights=[1, 2, 3, 4])
    np.testing.assert_allclose(found.direction, expected.direction, rtol=1e-12)


def test_only_zero_updates_give_zero():
    step = aggregator("fedmgda").aggregate(np.zeros((3, 4)))
    np.testing.assert_array_equal(step.direction, np.zeros(4))


def test_one_client_gives_its_unit_update(updates):
    step = aggregator("fedmgda").aggregate(updates[:1])
    np.testing.assert_allclose(step.direction, _unit(updates)[0], rtol=1e-14)


def test_scales_differ_by_the_length_only(updates):
    unit = aggregator("fedmgda").aggregate(updates).direction
    rated = aggregator("fedmgda", scale="client_lr").aggregate(updates, client_lr=0.05).direction
    sized = aggregator("fedmgda", scale="mean_norm").aggregate(updates).direction
    np.testing.assert_allclose(rated, 0.05 * unit, rtol=1e-13)
    np.testing.assert_allclose(sized, np.linalg.norm(updates, axis=1).mean() * unit, rtol=1e-13)


def test_the_client_rate_is_needed_only_where_it_is_used(updates):
    assert aggregator("fedmgda").needs == frozenset()
    with pytest.raises(InputError, match="client_lr"):
        aggregator("fedmgda", scale="client_lr").aggregate(updates)


@pytest.mark.parametrize(
    ("name", "value"), [("epsilon", -0.1), ("scale", "mean"), ("norm_offset", -1.0)]
)
def test_impossible_parameters_are_refused(name, value):
    with pytest.raises(InputError, match=name):
        aggregator("fedmgda", **{name: value})
