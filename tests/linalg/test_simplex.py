"""Projection on the probability simplex."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcraft.linalg import project_simplex


def test_projection_reproduces_torchjd_and_not_the_published_slip(golden):
    case = golden("simplex-a.npz")
    slipped = 0
    for point, size, expected, wrong in zip(
        case["y"], case["sizes"], case["torchjd"], case["fair_flearn_off_by_one"], strict=True
    ):
        found = project_simplex(torch.from_numpy(point[:size])).numpy()
        np.testing.assert_allclose(found, expected[:size], atol=1e-12)
        slipped += not np.allclose(found, wrong[:size], atol=1e-6)
    assert slipped > 0


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12))
def test_no_point_of_the_simplex_is_closer(values):
    """x is the projection of y iff <y - x, z - x> <= 0 for every corner z."""
    point = torch.tensor(values, dtype=torch.float64)
    found = project_simplex(point)
    assert float(found.sum()) == pytest.approx(1, abs=1e-9)
    assert float(found.min()) >= 0
    gap = point - found
    assert float(gap.max() - gap @ found) <= 1e-9 * (1 + float(point.abs().max()))


def test_points_of_the_simplex_stay():
    point = torch.tensor([0.2, 0.0, 0.8], dtype=torch.float64)
    torch.testing.assert_close(project_simplex(point), point)


@pytest.mark.parametrize("huge", [1e16, 1e300])
def test_a_huge_entry_takes_all(huge):
    found = project_simplex(torch.tensor([huge, 1.0, 2.0], dtype=torch.float64))
    assert found.tolist() == [1.0, 0.0, 0.0]
