"""FedFV: projections in the order of the losses, and over the last rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedcraft import aggregator
from fedcraft.errors import InputError


def _follow(case, relative_error, tolerance, **params):
    rule = aggregator("fedfv", alpha=case["alpha"], tau=case["tau"], **params)
    for record in case.rounds:
        step = rule.aggregate(record["updates"], losses=record["losses"], client_ids=record["ids"])
        assert relative_error(step.direction, record["agg"]) < tolerance


@pytest.mark.golden("fedfv-*.npz")
def test_fedfv_reproduces_the_authors(golden_case, relative_error):
    _follow(golden_case, relative_error, 1e-11)


@pytest.mark.golden("fedfv_gfedplat-*.npz")
def test_fedfv_reproduces_gfedplat_with_its_guard(golden_case, relative_error):
    _follow(golden_case, relative_error, 1e-5, guard=1e-6)


def _by_vectors(updates, losses, alpha):
    """Steps 1 to 3 and 6 of the rule, written with vectors instead of Gram matrices."""
    order = np.argsort(losses, kind="stable")
    size = len(updates)
    kept = size - int(np.ceil((size - 1) * (1 - alpha))) if alpha > 0 else 0
    pieces = updates.copy()
    for i in order[: size - kept]:
        for j in order:
            dot = updates[j] @ pieces[i]
            if j != i and dot < 0:
                pieces[i] = pieces[i] - dot / (updates[j] @ updates[j]) * updates[j]
    mean = pieces.mean(0)
    return mean / np.linalg.norm(mean) * np.linalg.norm(updates.mean(0))


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 1.0])
def test_gram_algebra_equals_projecting_the_vectors(alpha):
    draw = np.random.default_rng(7)
    updates, losses = draw.normal(size=(12, 20)), draw.uniform(size=12)
    step = aggregator("fedfv", alpha=alpha, tau=0).aggregate(updates, losses=losses)
    np.testing.assert_allclose(step.direction, _by_vectors(updates, losses, alpha), rtol=1e-10)


def test_the_worst_client_keeps_its_update():
    updates = np.array([[1.0, 0.0], [-1.0, 1.0]])
    step = aggregator("fedfv", alpha=0.1, tau=0).aggregate(updates, losses=[0.1, 0.9])
    projected = updates[0] + updates[1] / 2  # off the second, <g_2, g_1> / ||g_2||^2 = -1/2
    expected = (projected + updates[1]) / 2
    expected *= np.linalg.norm(updates.mean(0)) / np.linalg.norm(expected)
    np.testing.assert_allclose(step.direction, expected, rtol=1e-13)


def test_the_codes_tau_one_looks_at_no_earlier_round():
    rule, fresh = aggregator("fedfv", tau=1), aggregator("fedfv", tau=1)
    rule.aggregate(np.array([[-1.0, 0.0]]), client_ids=[9], losses=[1.0])
    again = rule.aggregate(np.array([[1.0, 1.0]]), client_ids=[1], losses=[1.0])
    first = fresh.aggregate(np.array([[1.0, 1.0]]), client_ids=[1], losses=[1.0])
    np.testing.assert_array_equal(again.direction, first.direction)


@pytest.mark.parametrize("params", [{"tau": 2}, {"tau": 1, "external": "paper"}])
def test_a_recent_conflicting_upload_is_projected_off(params):
    rule = aggregator("fedfv", **params)
    rule.aggregate(np.array([[-1.0, 0.0]]), client_ids=[9], losses=[1.0])
    step = rule.aggregate(np.array([[1.0, 1.0]]), client_ids=[1], losses=[1.0])
    np.testing.assert_allclose(step.direction, [0.0, np.sqrt(2)], atol=1e-15)


def test_only_the_last_upload_of_a_client_counts():
    rule = aggregator("fedfv", tau=1, external="paper")
    rule.aggregate(np.array([[-1.0, 0.0]]), client_ids=[1], losses=[1.0])
    step = rule.aggregate(np.array([[1.0, 1.0]]), client_ids=[1], losses=[1.0])
    np.testing.assert_allclose(step.direction, [1.0, 1.0], rtol=1e-15)


@pytest.mark.parametrize(("external", "held"), [("code", 2), ("paper", 3)])
def test_only_uploads_that_can_still_matter_are_held(external, held):
    rule = aggregator("fedfv", tau=3, external=external)
    for number in range(6):
        rule.aggregate(torch.randn(2, 4), client_ids=[2 * number, 2 * number + 1], losses=[1, 2])
    assert rule.state_dict()["upload_rows"].shape == (2 * held, 4)


def test_history_survives_when_the_callers_matrix_is_reused():
    matrix = torch.tensor([[-1.0, 0.0]])
    rule = aggregator("fedfv", tau=2)
    rule.aggregate(matrix, client_ids=[9], losses=[1.0])
    matrix.fill_(1.0)
    step = rule.aggregate(matrix, client_ids=[1], losses=[1.0])
    torch.testing.assert_close(step.direction, torch.tensor([0.0, 2**0.5]), atol=1e-6, rtol=0)


def test_updates_that_cancel_give_zero_not_nan():
    updates = np.array([[1.0, 2.0], [-3.0, -6.0]])
    step = aggregator("fedfv", alpha=0.0).aggregate(updates, losses=[1.0, 2.0])
    np.testing.assert_array_equal(step.direction, [0.0, 0.0])


def test_a_zero_update_is_never_projected_on():
    updates = np.array([[1.0, 0.0], [0.0, 0.0], [-1.0, 1.0]])
    step = aggregator("fedfv").aggregate(updates, losses=[1.0, 2.0, 3.0])
    assert np.isfinite(step.direction).all()


@pytest.mark.parametrize(("dtype", "length"), [(np.float32, 1e-23), (np.float64, 1e-170)])
def test_nothing_is_projected_off_an_update_too_short_to_be_squared(dtype, length):
    updates = np.array([[1, 2, 3], [3, 2, 1], [0, 0, 0]], dtype)
    expected = aggregator("fedfv", alpha=0.0).aggregate(updates, losses=[1, 2, 3]).direction
    updates[2] = -length * np.array([1, 2, 2])
    step = aggregator("fedfv", alpha=0.0).aggregate(updates, losses=[1, 2, 3])
    np.testing.assert_allclose(step.direction, expected, rtol=1e-6)


def test_nothing_is_projected_off_earlier_updates_too_short_to_be_squared():
    rule = aggregator("fedfv", tau=1, external="paper")
    rule.aggregate(np.array([[-1e-170, 0.0]]), client_ids=[9], losses=[1.0])
    step = rule.aggregate(np.array([[1.0, 1.0]]), client_ids=[1], losses=[1.0])
    np.testing.assert_allclose(step.direction, [1.0, 1.0], rtol=1e-15)


@pytest.mark.parametrize(
    ("name", "value"), [("alpha", 1.5), ("tau", -1), ("tau", 0.5), ("external", "x"), ("guard", -1)]
)
def test_impossible_parameters_are_refused(name, value):
    with pytest.raises(InputError, match=name):
        aggregator("fedfv", **{name: value})
