"""FedLF: a common descent direction in every layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedcraft import aggregator


def _follow(case, relative_error, **params):
    rule = aggregator("fedlf", **params)
    for record in case.rounds:
        step = rule.aggregate(
            record["updates"],
            losses=record["losses"],
            client_ids=record["ids"],
            layers=case["layer_sizes"],
        )
        assert relative_error(case["eta_l"] * step.direction, record["agg"]) < 1e-4


@pytest.mark.golden("fedlf-a_full_participation.npz")
def test_fedlf_reproduces_the_authors_without_history(golden_case, relative_error):
    _follow(golden_case, relative_error, history=False)


@pytest.mark.golden("fedlf-*.npz")
def test_fedlf_reproduces_the_authors_with_history(golden_case, relative_error):
    _follow(golden_case, relative_error, history=True)


def test_history_changes_the_step_where_the_authors_used_it(golden, relative_error):
    case = golden("fedlf-a_history.npz")
    rule = aggregator("fedlf", history=False)
    for record in case.rounds:
        step = rule.aggregate(
            record["updates"],
            losses=record["losses"],
            client_ids=record["ids"],
            layers=case["layer_sizes"],
        )
        differs = relative_error(case["eta_l"] * step.direction, record["agg"]) > 1e-2
        assert differs == bool(record["used_history"])


@pytest.fixture
def updates():
    return np.random.default_rng(2).normal(size=(5, 30)) + 0.3


LOSSES = [0.4, 1.0, 2.0, 0.7, 1.5]
LAYERS = [12, 10, 8]


def test_no_client_conflicts_with_any_layer(updates):
    step = aggregator("fedlf").aggregate(updates, losses=LOSSES, layers=LAYERS)
    assert float(step.certificate.alignment.min()) > 0


def test_the_step_is_as_long_as_the_mean_update(updates):
    step = aggregator("fedlf").aggregate(updates, losses=LOSSES, layers=LAYERS)
    assert np.linalg.norm(step.direction) == pytest.approx(np.linalg.norm(updates.mean(0)))


def test_one_client_gets_its_own_update(updates):
    step = aggregator("fedlf").aggregate(updates[:1], losses=[1.0], layers=LAYERS)
    np.testing.assert_allclose(step.direction, updates[0], rtol=1e-12)


def test_equal_losses_add_no_fair_row(updates):
    """A hair of difference in the losses must not decide the direction by rounding noise."""
    exact = aggregator("fedlf").aggregate(updates, losses=[1.3] * 5, layers=LAYERS)
    noisy = aggregator("fedlf").aggregate(updates, losses=1.3 + 1e-12 * np.arange(5), layers=LAYERS)
    np.testing.assert_array_equal(exact.direction, noisy.direction)


def test_zero_losses_add_no_fair_row(updates):
    zero = aggregator("fedlf").aggregate(updates, losses=[0] * 5, layers=LAYERS)
    equal = aggregator("fedlf").aggregate(updates, losses=[1] * 5, layers=LAYERS)
    np.testing.assert_array_equal(zero.direction, equal.direction)


def test_a_client_with_a_zero_layer_is_left_out_of_that_layer(updates):
    changed = updates.copy()
    changed[1, 12:22] = 0
    found = aggregator("fedlf").aggregate(changed, losses=[1] * 5, layers=LAYERS)
    others = [0, 2, 3, 4]
    alone = aggregator("fedlf").aggregate(changed[others][:, 12:22], losses=[1] * 4)
    cosine = found.direction[12:22] @ alone.direction
    cosine /= np.linalg.norm(found.direction[12:22]) * np.linalg.norm(alone.direction)
    assert cosine == pytest.approx(1)


def test_a_layer_without_updates_does_not_move(updates):
    updates[:, :12] = 0
    step = aggregator("fedlf").aggregate(updates, losses=LOSSES, layers=LAYERS)
    np.testing.assert_array_equal(step.direction[:12], np.zeros(12))
    assert np.linalg.norm(step.direction) == pytest.approx(np.linalg.norm(updates.mean(0)))


def test_opposite_clients_stay_put():
    updates = np.array([[1.0, 2.0, 3.0], [-2.0, -4.0, -6.0]])
    step = aggregator("fedlf").aggregate(updates, losses=[1.0, 1.0])
    np.testing.assert_array_equal(step.direction, np.zeros(3))


def test_uploads_are_forgotten_when_they_leave_the_window():
    """With 12 clients and 2 a round the window is 6 rounds at most."""
    rule = aggregator("fedlf", history=True)
    for number in range(20):
        ids = [(2 * number) % 12, (2 * number + 1) % 12]
        rule.aggregate(torch.randn(2, 4), client_ids=ids, losses=[1, 2])
    assert rule.state_dict()["upload_rows"].shape == (12, 4)
    for _ in range(20):
        rule.aggregate(torch.randn(2, 4), client_ids=[0, 1], losses=[1, 2])
    assert rule.state_dict()["upload_rows"].shape == (2, 4)


def test_without_history_nothing_is_remembered(updates):
    rule = aggregator("fedlf")
    rule.aggregate(updates, losses=LOSSES)
    assert set(rule.state_dict()) == {"rule", "dimension"}


def _distance(found, expected) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def _nearly_opposite(sine: float) -> np.ndarray:
    """Two clients whose common descent direction is short beside their updates."""
    cosine = (1 - sine**2) ** 0.5
    return np.array([[cosine, sine], [-cosine, sine]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sine", [1.2e-3, 1e-5])
def test_a_short_common_direction_is_not_taken_for_rounding(sine, dtype):
    updates = (_nearly_opposite(sine) * [[3.0], [1.0]]).astype(dtype)
    step = aggregator("fedlf").aggregate(updates, losses=[1.0, 1.0])
    np.testing.assert_allclose(step.direction, [0, 1], atol=0.01)


def test_a_fair_row_that_cancels_in_float32_is_looked_at_again():
    """sum_i h_i u_i is short here: float32 products must not decide whether it is there."""
    losses = [1.0, 3.0]
    found = [
        aggregator("fedlf").aggregate(_nearly_opposite(0.9999).astype(dtype), losses=losses)
        for dtype in ("float32", "float64")
    ]
    np.testing.assert_allclose(found[0].direction, found[1].direction, rtol=1e-3)


@pytest.mark.parametrize("rule", ["fedlf", "fedmdfg"])
@pytest.mark.parametrize("sine", [1e-4, 1e-5])
def test_a_short_direction_of_a_wide_model_works_against_no_client(rule, sine):
    """float32 sums of long rows would leave more rounding than direction."""
    for seed in range(3):
        basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(5000, 2)))
        updates = _nearly_opposite(sine) * [[3.0], [1.0]] @ basis.T
        found, expected = (
            aggregator(rule).aggregate(updates.astype(dtype), losses=[1.0, 1.0])
            for dtype in ("float32", "float64")
        )
        assert _distance(found.direction, expected.direction) < 0.05
        assert found.certificate.conflict_free


@pytest.mark.parametrize("rule", ["fedlf", "fedmdfg"])
def test_a_direction_that_is_short_beside_earlier_uploads_too(rule):
    options = {"history": True} if rule == "fedlf" else {}
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(5000, 2)))
    found = []
    for dtype in ("float32", "float64"):
        chosen = aggregator(rule, **options)
        for client, row in enumerate((_nearly_opposite(1e-5) @ basis.T).astype("float32")):
            step = chosen.aggregate(row[None].astype(dtype), losses=[1.0], client_ids=[client])
        found.append(step.direction)
    assert _distance(*found) < 1e-3


def test_a_layers_mean_length_is_that_of_the_clients_that_moved_it():
    """Parallel rows leave mu^q alone: lengths 1, 1, 1 and 2, 2, 0."""
    updates = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 0.0]])
    step = aggregator("fedlf").aggregate(updates, layers=[1, 1], losses=[1.0, 1.0, 1.0])
    assert step.direction[1] / step.direction[0] == pytest.approx(2)
