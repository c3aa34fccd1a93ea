"""Sketches show the angles between updates, and their law depends on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from fedcraft.secure.sketch import gram_from, sketch


def seeds(count: int) -> list[bytes]:
    return [index.to_bytes(32, "little") for index in range(count)]


def structured(clients: int, size: int) -> torch.Tensor:
    """Unit rows with all their weight on a few coordinates: the hardest case for a sketch."""
    rows = torch.zeros(clients, size)
    rows[:, 0] = 1.0
    rows[torch.arange(clients), torch.arange(1, clients + 1)] = 2.0
    return torch.nn.functional.normalize(rows, dim=1)


def rotation(size: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(size, size, generator=random))[0]


def test_cosines_are_estimated_without_bias_and_with_the_expected_error():
    rows = structured(4, 300)
    exact = rows.double() @ rows.double().T
    count = 50
    found = torch.stack(
        [gram_from(sketch(rows, [300], s, count=count, fold=10**6))[0] for s in seeds(150)]
    )
    assert (found.mean(0) - exact).abs().max() < 4 / np.sqrt(150 * count)
    expected = (1 - exact[0, 1] ** 2) / np.sqrt(count)  # of a correlation of k normal pairs
    assert found[:, 0, 1].std() == pytest.approx(float(expected), rel=0.2)


def test_a_short_layer_is_rotated_and_its_gram_matrix_is_exact():
    rows = structured(5, 20)
    part = sketch(rows, [20], bytes(32), count=64, fold=10**6)[0]
    assert part.shape == (5, 20)
    assert torch.allclose(part @ part.T, rows @ rows.T, atol=1e-5)
    assert not torch.allclose(part, rows, atol=0.1)


@pytest.mark.parametrize("size", [12, 200], ids=["rotated", "projected"])
def test_rotating_the_updates_does_not_change_the_law_of_what_the_server_sees(size):
    """Two samples, one from U and one from U Q, cannot be told apart by any of four statistics."""
    rows = structured(3, size)
    turned = rows @ rotation(size)
    one = _statistics(rows, seeds(400))
    other = _statistics(turned, [bytes(16) + seed[:16] for seed in seeds(400)])
    for column in range(one.shape[1]):
        assert stats.ks_2samp(one[:, column], other[:, column]).pvalue > 1e-3


def test_the_same_comparison_catches_a_sketch_that_is_not_rotation_invariant():
    """A sketch of random signs is not: on one coordinate it is always +1 or -1."""
    rows = structured(3, 200)
    random = np.random.default_rng(0)

    def signs(sample: torch.Tensor) -> np.ndarray:
        found = []
        for _ in range(400):
            flips = torch.from_numpy(random.choice([-1.0, 1.0], (200, 20))).float()
            found.append(_summary(sample @ flips))
        return np.array(found)

    one, other = signs(rows), signs(rows @ rotation(200))
    pvalues = [stats.ks_2samp(one[:, c], other[:, c]).pvalue for c in range(one.shape[1])]
    assert min(pvalues) < 1e-6


def test_folding_changes_cosines_by_about_one_over_root_length():
    random = torch.Generator().manual_seed(3)
    rows = torch.nn.functional.normalize(torch.randn(3, 40_000, generator=random), dim=1)
    exact = rows.double() @ rows.double().T
    folded = gram_from(sketch(rows, [40_000], bytes(32), count=2000, fold=4096))[0]
    assert (folded - exact).abs().max() < 5 * (1 / np.sqrt(2000) + 1 / np.sqrt(4096))


def test_updates_in_different_pieces_of_a_layer_do_not_look_alike_after_folding():
    """Without signs two constant pieces would be added up to the same numbers."""
    rows = torch.zeros(2, 512)
    rows[0, :256] = rows[1, 256:] = 1 / 16
    cosines = [gram_from(sketch(rows, [512], s, count=128, fold=256))[0, 0, 1] for s in seeds(10)]
    assert np.abs(np.mean(cosines)) < 0.2


def test_a_client_without_an_update_has_no_angle():
    rows = torch.cat([structured(2, 30), torch.zeros(1, 30)])
    kernel = gram_from(sketch(rows, [30], bytes(32), count=10, fold=10**6))[0]
    assert kernel[2].tolist() == [0, 0, 1]


def _statistics(rows: torch.Tensor, several: list[bytes]) -> np.ndarray:
    size = rows.shape[1]
    return np.array([_summary(sketch(rows, [size], s, count=20, fold=10**6)[0]) for s in several])


def _summary(part: torch.Tensor) -> list[float]:
    """An entry, the largest entry, a fourth moment, and the product of two clients, to 4 digits."""
    first, second = part[:2].double()
    found = (first[0], first.abs().max(), (first**4).mean(), first @ second)
    return [round(float(value), 4) for value in found]
