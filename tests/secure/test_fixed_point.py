"""Fixed-point sums are exact, never overflow, and are as narrow as the precision allows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedcraft.errors import InputError
from fedcraft.secure.fixed_point import FixedPoint

SIZES = (50, 7)


def point(coefficients: torch.Tensor, precision: float = 1e-3) -> FixedPoint:
    return FixedPoint.choose(SIZES, coefficients, torch.ones(2), precision)


def total(format: FixedPoint, units: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    words = np.zeros(format.count, np.uint32)
    for i, row in enumerate(units):
        words += format.encode(row, coefficients[:, i].tolist())
    return format.decode(words)


def test_a_sum_is_right_to_the_rounding_that_was_asked_for():
    random = torch.Generator().manual_seed(0)
    units = torch.nn.functional.normalize(torch.randn(9, 57, generator=random), dim=1)
    c = torch.randn(2, 9, generator=random, dtype=torch.float64)
    for precision in (1e-1, 1e-3, 1e-6):
        found = total(point(c, precision), units, c)
        parts = [c[q] @ units[:, s].double() for q, s in enumerate((slice(50), slice(50, 57)))]
        exact = torch.cat(parts)
        assert float((found - exact).norm()) < 2 * precision


@pytest.mark.parametrize("precision", [1e-1, 1e-4, 1e-6])
def test_the_largest_possible_sum_does_not_overflow(precision):
    """All clients have all their weight on one coordinate, with one sign."""
    c = torch.full((2, 100), 0.3, dtype=torch.float64)
    units = torch.zeros(100, 57)
    units[:, 0] = units[:, 56] = 1.0
    for sign in (1, -1):
        found = total(point(c, precision), units, sign * c)
        assert found[[0, 56]].tolist() == pytest.approx([sign * 30] * 2, rel=max(precision, 1e-6))


def test_less_precision_means_fewer_bytes_and_too_much_is_refused():
    c = torch.full((2, 10), 0.1, dtype=torch.float64)
    assert [point(c, p).width for p in (1e-1, 1e-3, 1e-6)] == [2, 2, 3]
    with pytest.raises(InputError, match=r"secure\.precision: rounding to 32 bits"):
        point(c, 1e-12)


def test_layers_without_coefficients_are_left_out_of_the_message():
    c = torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    format = point(c)
    assert format.count == 50
    found = total(format, torch.ones(2, 57) / 8, c)
    assert found[50:].tolist() == [0.0] * 7
    assert found[:50] == pytest.approx(torch.full((50,), 0.25), abs=1e-3)


@pytest.mark.parametrize("width", [2, 3, 4])
def test_numbers_survive_the_wire(width):
    format = FixedPoint(SIZES, (1.0, 1.0), width)
    words = np.random.default_rng(0).integers(0, 2 ** (8 * width), 57, dtype=np.uint32)
    packed = format.pack(words)
    assert packed.nbytes == 57 * width
    assert np.array_equal(format.unpack(packed), words)
    with pytest.raises(InputError, match="expected"):
        format.unpack(packed[:-1])


def test_masks_cover_every_number_and_come_off_without_a_trace():
    """A vector of several pieces under a mask looks uniform everywhere, and the mask cancels."""
    size = 3 * 65_536 + 17
    long = FixedPoint((size,), (1e-6,), 3)
    units = torch.full((size,), 0.5)
    words = long.encode(units, [1.0])
    masked = words.copy()
    long.add_mask(masked, bytes(range(32)))
    means = [part.mean() / 2**32 for part in np.array_split(masked, 40)]
    assert np.abs(np.array(means) - 0.5).max() < 0.03  # 7 standard errors of 4,915 uniform numbers
    long.add_mask(masked, bytes(range(32)), -1)
    assert (masked == words).all()
    assert long.decode(words).tolist() == units.tolist()
