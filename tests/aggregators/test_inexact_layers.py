"""Layers whose float32 Gram matrix is too inexact: corrected on their rows, never copied whole."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fedcraft
from fedcraft.aggregators.cohort import MemoryCohort
from fedcraft.linalg import block_grams, layer_gram

SIZES = [40_000, 12_000, 300]


def agreeing(clients, own, seed=0):
    """Return rows with a common part; U's smallest singular value is about ``own``."""
    draw = torch.Generator().manual_seed(seed)
    common = torch.randn(sum(SIZES), generator=draw)
    return 0.01 * (common + own * torch.randn(clients, sum(SIZES), generator=draw))


def aggregated(rows, previous, **options):
    rule = fedcraft.aggregator("craft", **options)
    rule.load_state_dict({"reference": previous, "rule": "Craft"})
    return rule.aggregate(rows, layers=SIZES, weights=range(1, len(rows) + 1))


@pytest.mark.parametrize("clients", [10, 40])
@pytest.mark.parametrize("own", [1.0, 0.2, 0.07])
def test_a_correction_gives_the_digits_of_float64(clients, own, monkeypatch):
    rows, previous = agreeing(clients, own), agreeing(1, 1.0, seed=9)[0]
    exact = aggregated(rows.double(), previous.double())
    monkeypatch.setattr(MemoryCohort, "precise_gram", None)  # no float64 product is needed

    found = aggregated(rows, previous)

    for part, right in zip(found.direction.split(SIZES), exact.direction.split(SIZES), strict=True):
        assert float((part - right).abs().max()) < 5e-6 * float(right.abs().max())
    alignment, residual = found.certificate.alignment, found.certificate.layers.residual
    torch.testing.assert_close(alignment, exact.certificate.alignment, rtol=0, atol=1e-9)
    assert float(residual.max()) < 1e-8
    norms = (found.certificate.layers.correction_norm, exact.certificate.layers.correction_norm)
    torch.testing.assert_close(*norms, rtol=1e-5, atol=0)


def test_where_the_limit_acts_the_answer_is_that_of_float64_too():
    rows, previous = agreeing(40, 0.02), agreeing(1, 1.0, seed=9)[0]
    found, exact = aggregated(rows, previous), aggregated(rows.double(), previous.double())

    assert bool(found.certificate.layers.bounded.any())
    assert found.certificate.layers.bounded.tolist() == exact.certificate.layers.bounded.tolist()
    difference = found.direction - exact.direction
    assert float(difference.norm()) < 2e-5 * float(exact.direction.norm())


class _LargestFloat64(TorchDispatchMode):
    """Remembers the largest float64 tensor that an operation returned."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dtype == torch.float64:
            self.numbers = max(self.numbers, out.numel())
        return out


@pytest.mark.parametrize("own", [0.2, 0.02])
def test_no_layer_is_copied_to_float64(own):
    rows, previous = agreeing(40, own), agreeing(1, 1.0, seed=9)[0]
    with _LargestFloat64() as seen:
        aggregated(rows, previous)

    assert 0 < seen.numbers <= 40 * 4096 < 40 * SIZES[1]


@pytest.mark.parametrize("clients", [10, 40])
def test_gram_matrices_lose_no_digits_on_wide_layers(clients):
    draw = torch.Generator().manual_seed(3)
    rows = torch.randn(clients, 150_001, generator=draw).abs()  # nothing cancels
    exact = rows.double() @ rows.double().T
    (found,), precise = block_grams(rows, [slice(0, 150_001)]), layer_gram(rows)

    assert float(((found - exact) / exact).abs().max()) < 3e-7
    assert float(((precise - exact) / exact).abs().max()) < 1e-12
