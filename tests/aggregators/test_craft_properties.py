"""CRAFT over nasty matrices: the projection is optimal, whatever the clients send."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedcraft

EPS = np.finfo(np.float64).eps
SETTINGS = settings(max_examples=80, deadline=None)


@st.composite
def nasty_rounds(draw, max_clients=7):
    """Updates with zero rows, copies, opposites, low rank, wild scales, and m > d_q."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    count = draw(st.integers(1, max_clients))
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    rank = draw(st.integers(1, 9))
    width = sum(sizes)
    rows = rng.normal(size=(count, rank)) @ rng.normal(size=(rank, width))
    for i in range(count):
        kind = draw(st.sampled_from(["plain", "plain", "zero", "copy", "opposite"]))
        other = rows[draw(st.integers(0, count - 1))]
        rows[i] = {"plain": rows[i], "zero": 0 * rows[i], "copy": other, "opposite": -2 * other}[
            kind
        ]
    scales = 10.0 ** np.array([draw(st.integers(-12, 12)) for _ in range(count)])
    weights = rng.uniform(0.1, 5, size=count)
    return rows * scales[:, None], sizes, weights


def unit_blocks(updates, sizes, tau):
    start = 0
    for size in sizes:
        block = updates[:, start : start + size]
        norms = np.linalg.norm(block, axis=1)
        active = (norms >= tau) & (norms > 0)
        yield slice(start, start + size), block[active] / norms[active, None], active
        start += size


def pseudo_inverse_cutoff(units):
    return max(units.shape) * EPS


@SETTINGS
@given(nasty_rounds(), nasty_rounds())
def test_equal_is_the_pseudo_inverse_projection_of_the_reference(first, second):
    craft = fedcraft.aggregator("craft", eps=0.0)
    updates, sizes, weights = second
    anchor_rows = np.resize(first[0], (3, updates.shape[1]))
    anchor = craft.aggregate(anchor_rows, layers=sizes).direction
    found = craft.aggregate(updates, weights=weights, layers=sizes).direction
    for block, units, active in unit_blocks(updates, sizes, craft.tau):
        if not active.any():
            continue
        rho = weights[active] / weights[active].sum()
        length = np.linalg.norm(anchor[block])
        reference = anchor[block] / length if length > 0 else 0 * anchor[block]
        inverse = np.linalg.pinv(units, rcond=pseudo_inverse_cutoff(units))
        expected = reference + inverse @ (rho - units @ reference)
        tolerance = 1e-9 * max(1.0, np.abs(inverse).max() ** 2)
        np.testing.assert_allclose(found[block], expected, atol=tolerance, rtol=1e-7)


@SETTINGS
@given(nasty_rounds())
def test_equal_meets_the_kkt_conditions_of_least_squares(case):
    updates, sizes, weights = case
    step = fedcraft.aggregator("craft", eps=0.0).aggregate(updates, weights=weights, layers=sizes)
    assert np.isfinite(step.direction).all()
    for layer, (block, units, active) in enumerate(unit_blocks(updates, sizes, 1e-6)):
        if not active.any():
            continue
        rho = weights[active] / weights[active].sum()
        gap = units @ step.direction[block] - rho
        scale = 1 + np.linalg.norm(step.direction[block])
        # The residual is orthogonal to the range of U: nothing can be improved.
        np.testing.assert_allclose(units.T @ gap, 0, atol=1e-7 * scale)
        if int(step.certificate.rank[layer]) == active.sum():
            np.testing.assert_allclose(gap, 0, atol=1e-7 * scale)
            assert (step.certificate.alignment[layer][torch.from_numpy(active)] > 0).all()


@SETTINGS
@given(nasty_rounds())
def test_at_least_meets_the_kkt_conditions_of_the_projection(case):
    updates, sizes, weights = case
    craft = fedcraft.aggregator("craft", constraint="at_least", eps=0.0)
    anchor = craft.aggregate(np.roll(updates, 1, axis=1), layers=sizes).direction
    step = craft.aggregate(updates, weights=weights, layers=sizes)
    for layer, (block, units, active) in enumerate(unit_blocks(updates, sizes, 1e-6)):
        if not active.any() or float(step.certificate.residual[layer]) > 1e-8:
            continue  # the demands cannot be met together; see the next test
        rho = weights[active] / weights[active].sum()
        length = np.linalg.norm(anchor[block])
        reference = anchor[block] / length if length > 0 else 0 * anchor[block]
        move = step.direction[block] - reference
        slack = units @ step.direction[block] - rho
        assert (slack >= -1e-7).all()
        binding = slack <= 1e-6 * (1 + np.abs(slack).max())
        multipliers = nonnegative_fit(units[binding], move)
        np.testing.assert_allclose(
            units[binding].T @ multipliers, move, atol=1e-5 * (1 + np.linalg.norm(move))
        )


def nonnegative_fit(rows, vector):
    from scipy.optimize import nnls

    return nnls(rows.T, vector)[0] if len(rows) else np.zeros(0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_at_least_ends_in_the_least_violation_when_clients_are_opposite(dtype):
    updates = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 2.0, 0.0]], dtype=dtype)
    step = fedcraft.aggregator("craft", constraint="at_least").aggregate(updates)
    np.testing.assert_allclose(step.direction, [0.0, 1 / 3, 0.0], atol=1e-6)
    assert float(step.certificate.residual[0]) > 0.4


def test_at_least_moves_no_further_from_the_reference_than_equal():
    rng = np.random.default_rng(7)
    for _ in range(20):
        first, updates = rng.normal(size=(2, 6, 30))
        both = [fedcraft.aggregator("craft", constraint=c) for c in ("equal", "at_least")]
        state = fedcraft.aggregator("craft")
        state.aggregate(first)
        for craft in both:
            craft.load_state_dict(state.state_dict())
        equal, at_least = (craft.aggregate(updates).certificate for craft in both)
        assert float(at_least.correction_norm[0]) <= float(equal.correction_norm[0]) + 1e-12
        assert at_least.conflict_free


@SETTINGS
@given(nasty_rounds(), st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(case, random):
    updates, sizes, weights = case
    order = list(range(len(updates)))
    random.shuffle(order)
    one = fedcraft.aggregator("craft").aggregate(updates, weights=weights, layers=sizes)
    two = fedcraft.aggregator("craft").aggregate(
        updates[order], weights=weights[order], layers=sizes
    )
    scale = 1 + np.abs(one.direction).max()
    np.testing.assert_allclose(two.direction, one.direction, atol=1e-6 * scale)


@SETTINGS
@given(nasty_rounds(), st.sampled_from([np.float32, np.float64]))
def test_a_saved_state_gives_the_same_next_step(case, dtype):
    updates, sizes, weights = case
    updates = updates.astype(dtype)
    craft = fedcraft.aggregator("craft")
    craft.aggregate(updates[::-1], layers=sizes)
    twin = fedcraft.aggregator("craft")
    twin.load_state_dict(craft.state_dict())
    one = craft.aggregate(updates, weights=weights, layers=sizes).direction
    two = twin.aggregate(updates, weights=weights, layers=sizes).direction
    np.testing.assert_array_equal(one, two)


def test_float32_agrees_with_float64_on_well_posed_layers():
    rng = np.random.default_rng(11)
    updates = rng.normal(size=(40, 3000)) * 0.01 + rng.normal(size=3000) * 0.004
    layers = [300, 1700, 1000]
    double = fedcraft.aggregator("craft").aggregate(updates, layers=layers).direction
    single = fedcraft.aggregator("craft").aggregate(updates.astype(np.float32), layers=layers)
    assert np.abs(single.direction - double).max() <= 1e-5 * np.abs(double).max()


def test_float32_duplicates_are_recognised_as_one_direction():
    rng = np.random.default_rng(12)
    updates = torch.from_numpy(rng.normal(size=(6, 500))).float()
    updates[3] = 5 * updates[0]
    step = fedcraft.aggregator("craft").aggregate(updates)
    units = updates / updates.norm(dim=1, keepdim=True)
    expected = torch.linalg.pinv(units) @ torch.full((6,), 1 / 6)
    assert int(step.certificate.rank[0]) == 5
    torch.testing.assert_close(step.direction, expected, atol=1e-6, rtol=1e-5)
