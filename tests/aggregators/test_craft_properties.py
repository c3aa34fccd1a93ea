"""CRAFT over nasty matrices: the projection is optimal, whatever the clients send."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, nnls

import fedcraft

SETTINGS = settings(max_examples=80, deadline=None)
KINDS = ["plain", "plain", "zero", "copy", "opposite", "near copy", "near opposite"]
LONGEST = 1e3  # demands that need a longer step than this count as impossible


@st.composite
def nasty_rounds(draw, max_clients=7, dtypes=(np.float64,)):
    """Updates with zero rows, (nearly) copies and opposites, low rank, wild scales, and m > d_q."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    count = draw(st.integers(1, max_clients))
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    rank = draw(st.integers(1, 9))
    width = sum(sizes)
    rows = rng.normal(size=(count, rank)) @ rng.normal(size=(rank, width))
    for i in range(count):
        kind = draw(st.sampled_from(KINDS))
        other = rows[draw(st.integers(0, count - 1))]
        near = other + 10.0 ** -draw(st.integers(2, 8)) * rng.normal(size=width)
        rows[i] = {
            "plain": rows[i],
            "zero": 0 * rows[i],
            "copy": other,
            "opposite": -2 * other,
            "near copy": near,
            "near opposite": -near,
        }[kind]
    scales = 10.0 ** np.array([draw(st.integers(-12, 12)) for _ in range(count)])
    weights = rng.uniform(0.1, 5, size=count)
    return (rows * scales[:, None]).astype(draw(st.sampled_from(dtypes))), sizes, weights


any_dtype = nasty_rounds(dtypes=(np.float32, np.float64))


def unit_blocks(updates, sizes, tau):
    start, rows = 0, updates.astype(np.float64)
    for size in sizes:
        block = rows[:, start : start + size]
        norms = np.linalg.norm(block, axis=1)
        active = (norms >= tau) & (norms > 0)
        yield slice(start, start + size), block[active] / norms[active, None], active
        start += size


def unit(vector):
    length = np.linalg.norm(vector.astype(np.float64))
    return vector / length if length > 0 else 0 * vector


def shares(weights, active):
    return weights[active] / weights[active].sum()


def pseudo_inverse(units, dtype):
    """U^+ with the cut-off of ``dtype``; None where rounding decides what is below it."""
    cutoff = max(units.shape) * np.finfo(dtype).eps
    left, values, right = np.linalg.svd(units, full_matrices=False)
    relative = values / values[0]
    if ((relative > cutoff / 20) & (relative < 20 * cutoff)).any():
        return None
    kept = relative > cutoff
    return right.T[:, kept] / values[kept] @ left.T[kept]


def rounding(inverse, units, step, residual, dtype):
    """What the data's own rounding may move a solution by: |U^+| eps, times what it multiplies.

    The second power of |U^+| comes in only with a residual: in least squares, not where the targets
    are met.
    """
    reach = np.linalg.norm(inverse, 2)
    size = 1 + np.linalg.norm(step) + reach * np.linalg.norm(residual)
    return 16 * max(units.shape) * np.finfo(dtype).eps * (1 + reach) * size


@SETTINGS
@given(any_dtype, any_dtype)
def test_equal_is_the_pseudo_inverse_projection_of_the_reference(first, second):
    craft = fedcraft.aggregator("craft", eps=0.0, clip=None)
    updates, sizes, weights = second
    anchor_rows = np.resize(first[0].astype(updates.dtype), (3, updates.shape[1]))
    anchor = craft.aggregate(anchor_rows, layers=sizes).direction
    step = craft.aggregate(updates, weights=weights, layers=sizes)
    for layer, (block, units, active) in enumerate(unit_blocks(updates, sizes, craft.tau)):
        inverse = pseudo_inverse(units, updates.dtype) if active.any() else None
        if inverse is None:
            continue
        reference = unit(anchor[block].astype(np.float64))
        move = inverse @ (shares(weights, active) - units @ reference)
        expected = reference + move
        residual = units @ expected - shares(weights, active)
        tolerance = rounding(inverse, units, expected, residual, updates.dtype)
        np.testing.assert_allclose(step.direction[block], expected, atol=tolerance, rtol=0)
        assert float(step.certificate.layers.correction_norm[layer]) == pytest.approx(
            np.linalg.norm(move), abs=tolerance
        )


@SETTINGS
@given(any_dtype)
def test_equal_meets_the_kkt_conditions_of_least_squares(case):
    updates, sizes, weights = case
    step = fedcraft.aggregator("craft", eps=0.0, clip=None).aggregate(
        updates, weights=weights, layers=sizes
    )
    assert np.isfinite(step.direction).all()
    digits = 64 * np.finfo(updates.dtype).eps
    for layer, (block, units, active) in enumerate(unit_blocks(updates, sizes, 1e-6)):
        inverse = pseudo_inverse(units, updates.dtype) if active.any() else None
        if inverse is None:
            continue
        gap = units @ step.direction[block] - shares(weights, active)
        tolerance = digits * (1 + np.linalg.norm(step.direction[block]))
        if int(step.certificate.layers.rank[layer]) == active.sum():
            np.testing.assert_allclose(gap, 0, atol=tolerance)
        else:
            # The residual is orthogonal to the range of U: nothing can be improved.
            reach = np.linalg.norm(inverse, 2)
            np.testing.assert_allclose(units @ inverse @ gap, 0, atol=tolerance * (1 + reach))


@SETTINGS
@given(any_dtype, st.sampled_from([1e-3, 1.0]))
def test_clipping_only_shortens_a_layer(case, clip):
    updates, sizes, weights = case
    free, clipped = (
        fedcraft.aggregator("craft", clip=limit).aggregate(updates, weights=weights, layers=sizes)
        for limit in (None, clip)
    )
    digits = 64 * np.finfo(updates.dtype).eps
    for block, _, _ in unit_blocks(updates, sizes, 0.0):
        long = free.direction[block].astype(np.float64)
        expected = long * min(1, clip / max(np.linalg.norm(long), 1e-300))
        np.testing.assert_allclose(clipped.direction[block], expected, atol=digits * clip)
        assert np.linalg.norm(clipped.direction[block].astype(np.float64)) <= clip * (1 + digits)


def within_reach(units, rho):
    """True if some step no longer than ``LONGEST`` gives everybody its share: a linear program."""
    limit = LONGEST / np.sqrt(units.shape[1])
    program = linprog(np.zeros(units.shape[1]), -units, -rho, bounds=(-limit, limit))
    return program.status == 0


@SETTINGS
@given(any_dtype)
def test_at_least_meets_the_kkt_conditions_of_the_projection(case):
    updates, sizes, weights = case
    craft = fedcraft.aggregator("craft", constraint="at_least", eps=0.0, clip=None)
    anchor = craft.aggregate(np.roll(updates, 1, axis=1), layers=sizes).direction
    step = craft.aggregate(updates, weights=weights, layers=sizes)
    for layer, (block, units, active) in enumerate(unit_blocks(updates, sizes, 1e-6)):
        rho = shares(weights, active) if active.any() else None
        if rho is None or not within_reach(units, rho):
            continue  # the demands cannot be met together; see the next test
        move = step.direction[block] - unit(anchor[block].astype(np.float64))
        slack = units @ step.direction[block] - rho
        digits = max(1e-7, 64 * np.finfo(updates.dtype).eps) * (1 + np.linalg.norm(move))
        assert float(step.certificate.layers.residual[layer]) <= digits
        assert (slack >= -digits).all()
        binding = slack <= 10 * digits
        multipliers = nonnegative_fit(units[binding], move)
        np.testing.assert_allclose(units[binding].T @ multipliers, move, atol=100 * digits)


def nonnegative_fit(rows, vector):
    return nnls(rows.T, vector)[0] if len(rows) else np.zeros(0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_at_least_ends_in_the_least_violation_when_clients_are_opposite(dtype):
    updates = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 2.0, 0.0]], dtype=dtype)
    step = fedcraft.aggregator("craft", constraint="at_least").aggregate(updates)
    np.testing.assert_allclose(step.direction, [0.0, 1 / 3, 0.0], atol=1e-6)
    assert float(step.certificate.layers.residual[0]) > 0.4


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
        assert (
            float(at_least.layers.correction_norm[0])
            <= float(equal.layers.correction_norm[0]) + 1e-12
        )
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
    for block, units, active in unit_blocks(updates, sizes, 1e-6):
        inverse = pseudo_inverse(units, updates.dtype) if active.any() else None
        if inverse is not None:
            step = one.direction[block]
            residual = units @ step - shares(weights, active)
            tolerance = rounding(inverse, units, step, residual, updates.dtype)
            np.testing.assert_allclose(two.direction[block], step, atol=tolerance, rtol=0)


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
    assert int(step.certificate.layers.rank[0]) == 5
    torch.testing.assert_close(step.direction, expected, atol=1e-6, rtol=1e-5)
