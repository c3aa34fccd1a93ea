"""The products by layer: float64 where float32 has no room, an error where nothing has."""

from __future__ import annotations

import pytest
import torch

from fedcraft.errors import NonFiniteError
from fedcraft.linalg import block_combine, block_dots, block_grams, block_square_norms

SLICES = [slice(0, 3), slice(3, 8)]
PRODUCTS = {
    "grams": lambda rows: block_grams(rows, SLICES),
    "dots": lambda rows: block_dots(rows, rows[0], SLICES),
    "square_norms": lambda rows: block_square_norms(rows, SLICES),
}


def rows_of(length, dtype):
    rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (length * rows).to(dtype)


@pytest.mark.parametrize("kind", PRODUCTS)
@pytest.mark.parametrize("exponent", [0, 70])
def test_float32_products_are_those_of_float64(kind, exponent):
    rows = rows_of(2.0**exponent, torch.float32)
    found, expected = PRODUCTS[kind](rows), PRODUCTS[kind](rows.double())
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", PRODUCTS)
def test_products_beyond_float64_are_an_error(kind):
    with pytest.raises(NonFiniteError, match="overflow float64"):
        PRODUCTS[kind](rows_of(1e200, torch.float64))


@pytest.mark.parametrize(("dtype", "length"), [(torch.float32, 3e-23), (torch.float64, 1e-170)])
def test_rows_too_short_to_be_squared_count_as_zero(dtype, length):
    rows = rows_of(1.0, dtype)
    rows[2] *= length
    without = rows.clone()
    without[2] = 0
    for product in (block_grams, block_square_norms):
        assert torch.equal(product(rows, SLICES), product(without, SLICES))


def test_products_of_long_layers_are_added_up_in_float64():
    rows = torch.randn(3, 100_001, generator=torch.Generator().manual_seed(1))
    slices = [slice(0, 90_000), slice(90_000, 100_001)]
    expected = block_dots(rows.double(), rows[0].double(), slices)
    torch.testing.assert_close(block_dots(rows, rows[0], slices), expected, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("base", [None, torch.arange(8.0)])
def test_a_layer_without_coefficients_is_the_base(base):
    rows, scale = rows_of(1.0, torch.float32), torch.tensor([2.0, 0.5])
    coefficients = torch.tensor([[0.0] * 4, [1.0, -2.0, 0.0, 3.0]], dtype=torch.float64)
    offset = torch.zeros(8) if base is None else base * torch.tensor([2.0] * 3 + [0.5] * 5)
    found = block_combine(rows, coefficients, SLICES, base, scale)
    assert torch.equal(found[:3], offset[:3])
    torch.testing.assert_close(found[3:], (coefficients[1].float() @ rows + offset)[3:])
