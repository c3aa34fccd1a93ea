"""The plain average, weighted by data or not."""

from __future__ import annotations

import numpy as np
import pytest

from fedcraft import aggregator
from fedcraft.errors import InputError


@pytest.mark.golden("fedavg-*.npz")
def test_average_reproduces_flower(golden_case, relative_error):
    rule = aggregator("average")
    for record in golden_case.rounds:
        step = rule.aggregate(record["updates"], weights=record["n"])
        assert relative_error(step.direction, record["step"]) < 1e-12


@pytest.mark.golden("fedavg_gfedplat-*.npz")
def test_average_reproduces_gfedplat(golden_case, relative_error):
    rule = aggregator("average")
    for record in golden_case.rounds:
        step = rule.aggregate(record["updates"], weights=record["n"])
        assert relative_error(step.direction, record["agg"]) < 2e-6


@pytest.mark.golden("fedprox_fednovarepo-*.npz")
def test_average_of_proximal_clients_is_fedprox(golden_case, relative_error):
    rule = aggregator("average")
    for record in golden_case.rounds:
        step = rule.aggregate(record["updates"], weights=golden_case["rho"])
        assert relative_error(step.direction, record["agg"]) < 1e-11


def test_uniform_weighting_ignores_the_data_sizes():
    updates = np.random.default_rng(0).normal(size=(3, 5))
    step = aggregator("average", weighting="uniform").aggregate(updates, weights=[1, 10, 100])
    np.testing.assert_allclose(step.direction, updates.mean(0), rtol=1e-14)


def test_unknown_weighting_is_refused():
    with pytest.raises(InputError, match="weighting"):
        aggregator("average", weighting="size")
