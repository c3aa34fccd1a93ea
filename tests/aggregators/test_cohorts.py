"""A rule sees a cohort's products and nothing else: one that shows no rows serves as well."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedcraft
from fedcraft.aggregators import Cohort
from fedcraft.aggregators.inputs import RoundInput, read_cohort
from fedcraft.errors import InputError
from fedcraft.linalg import block_dots

SIZES = [30, 5, 60]


@dataclass(frozen=True, kw_only=True)
class Sealed(Cohort):
    """The contract and no more: three products and their type."""

    products: tuple[torch.Tensor, ...]  # one block of rows by layer

    @property
    def dtype(self):
        return torch.float64

    @property
    def grams(self):
        return torch.stack([rows @ rows.T for rows in self.products])

    def dots(self, vector):
        parts = zip(self.products, vector.split(self.layout.sizes), strict=True)
        return torch.stack([rows @ part for rows, part in parts])

    def add_up(self, terms):
        weights = terms.coefficients.expand(len(self.products), -1)
        total = torch.cat([rows.T @ c for rows, c in zip(self.products, weights, strict=True)])
        if terms.base is not None:
            scale = terms.base_scale.repeat_interleave(torch.tensor(self.layout.sizes))
            total += terms.base * scale
        return terms.factor * total


def make_round(seed, count=5):
    rng = np.random.default_rng(seed)
    arguments = {
        "weights": rng.uniform(1, 9, size=count),
        "layers": SIZES,
        "client_ids": list(range(count)),
        "losses": rng.uniform(0.1, 2, size=count),
        "steps": rng.integers(1, 5, size=count).astype(float),
        "client_lr": 0.1,
    }
    return rng.normal(size=(count, sum(SIZES))) + 0.2, arguments


@pytest.mark.parametrize(
    ("rule", "params"),
    [
        ("afl", {}),
        ("average", {}),
        ("config", {}),
        ("config", {"meaning": "original", "by_layer": True}),
        ("craft", {}),
        ("craft", {"clip": 0.2, "reference": "moving_average"}),
        ("craft", {"constraint": "at_least"}),
        ("fedfv", {}),
        ("fedlf", {}),
        ("cagrad", {}),
        ("fedgh", {}),
        ("gradvac", {"by_layer": False}),
        ("nash_mtl", {}),
        ("pcd", {}),
        ("upgrad", {"by_layer": False}),
        ("fedmgda", {}),
        ("fednova", {}),
        ("layer_momentum", {}),
        ("qfedavg", {}),
    ],
)
def test_three_products_are_enough(rule, params):
    sealed, plain = (fedcraft.aggregator(rule, **params) for _ in range(2))
    for seed in range(3):
        updates, arguments = make_round(seed)
        facts = RoundInput(**arguments).facts(*updates.shape)
        blocks = torch.from_numpy(updates).split(SIZES, dim=1)
        found = sealed.aggregate_cohort(Sealed(**facts, products=blocks))
        expected = plain.aggregate(updates, **arguments)
        np.testing.assert_allclose(found.direction, expected.direction, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(
            found.certificate.alignment, expected.certificate.alignment, atol=1e-10
        )


def test_dependent_rows_are_least_squares_without_rows_too():
    updates, arguments = make_round(0)
    updates[1] = updates[0]
    facts = RoundInput(**arguments).facts(*updates.shape)
    cohort = Sealed(**facts, products=torch.from_numpy(updates).split(SIZES, dim=1))
    found = fedcraft.aggregator("craft").aggregate_cohort(cohort)
    expected = fedcraft.aggregator("craft").aggregate(updates, **arguments)
    assert found.certificate.layers.rank.tolist() == [4, 4, 4]
    np.testing.assert_allclose(found.direction, expected.direction, rtol=1e-7, atol=1e-9)


def test_a_rule_that_asks_for_rows_gets_an_error_if_there_are_none():
    updates, arguments = make_round(0)
    facts = RoundInput(**arguments).facts(*updates.shape)
    cohort = Sealed(**facts, products=torch.from_numpy(updates).split(SIZES, dim=1))
    with pytest.raises(InputError, match="needs the updates in memory"):
        fedcraft.aggregator("fedmdfg").aggregate_cohort(cohort)


def test_products_are_reused_for_equal_vectors_and_only_for_those(monkeypatch):
    updates, arguments = make_round(0)
    cohort = read_cohort(updates, RoundInput(**arguments), drop_nonfinite=False)
    passes = []

    def counted(*given):
        passes.append(1)
        return block_dots(*given)

    monkeypatch.setattr("fedcraft.aggregators.cohort.block_dots", counted)
    vector = torch.from_numpy(updates[0].copy())
    first = cohort.dots(vector)
    assert torch.equal(cohort.dots(vector.clone()), first)
    assert len(passes) == 1
    vector *= 2  # in place
    torch.testing.assert_close(cohort.dots(vector), 2 * first)
    assert len(passes) == 2
