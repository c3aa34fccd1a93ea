"""What pinv's own cut-off, which grows with a layer's size, must not do to clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedcraft

WIDE = 2**20


def _two_clients(cosine: float, width: int = WIDE) -> torch.Tensor:
    """Return two float32 unit rows of a wide layer, at an angle."""
    rows = torch.zeros(2, width)
    rows[0, 0], rows[1, 0], rows[1, -1] = 1, cosine, (1 - cosine**2) ** 0.5
    return rows


@pytest.mark.parametrize("rule", ["craft", "config"])
@pytest.mark.parametrize("cosine", [-0.99, 0.99])
def test_independent_clients_of_a_wide_layer_are_all_served(rule, cosine):
    options = {"meaning": "target"} if rule == "config" else {}
    step = fedcraft.aggregator(rule, **options).aggregate(_two_clients(cosine), weights=[7, 3])
    assert step.certificate.conflict_free
    assert step.certificate.whole.rank == 2
    np.testing.assert_allclose(step.certificate.whole.alignment, [0.7, 0.3], atol=1e-5)


def test_a_layer_of_eight_million_numbers_still_moves():
    rule = fedcraft.aggregator("craft")
    step = rule.aggregate(_two_clients(0.99, 2**23))
    assert step.certificate.layers.rank.tolist() == [2]
    assert step.certificate.alignment.min() > 0.49


def test_the_released_code_has_pinvs_cut_off_in_every_layer():
    """Also where a Cholesky solve would do: pinv takes what clients differ in for rounding."""
    rows = torch.zeros(3, WIDE)
    rows[:, 0], rows[:, 1:4] = (1 - 0.18**2) ** 0.5, 0.18 * torch.eye(3)
    weights = torch.tensor([1.0, 2.0, 3.0])
    expected = torch.linalg.pinv(rows) @ (weights / weights.sum())
    found, ours = (
        fedcraft.aggregator("craft", released_code=released).aggregate(rows, weights=weights)
        for released in (True, False)
    )
    assert torch.allclose(found.direction, expected, atol=1e-4)
    assert found.certificate.layers.rank.tolist() == [1]
    assert ours.certificate.layers.rank.tolist() == [3]


@pytest.mark.parametrize(("ratio", "rank"), [(1.1e-4, 1), (1.35e-4, 2)])
@pytest.mark.parametrize("width", [1024, 5000])
def test_the_cut_off_stops_growing_at_1024_coordinates(width, ratio, rank):
    """Two unit rows at an angle of 2 ratio: 1024 eps of float32 are 1.22e-4."""
    rows = torch.zeros(2, width)
    rows[:, 0], rows[1, 1] = 1, 2 * ratio
    step = fedcraft.aggregator("craft").aggregate(rows)
    assert step.certificate.whole.rank == rank
