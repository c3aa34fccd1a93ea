"""The min-norm point: exact against enumeration and three independent solvers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, nnls

from fedcraft.errors import FedcraftError, InputError
from fedcraft.linalg.minnorm import _descend, _problem, min_norm_weights


def _weights(rows, lower=None, upper=None):
    bounds = [None if b is None else torch.from_numpy(np.asarray(b)) for b in (lower, upper)]
    return min_norm_weights(torch.from_numpy(rows @ rows.T), *bounds).numpy()


def _optimality_gap(rows, weights, lower, upper):
    """0 iff no mass can move from a corner to one with a smaller inner product."""
    gradient = rows @ (weights @ rows)
    givers, takers = gradient[weights > lower], gradient[weights < upper]
    if len(givers) == 0 or len(takers) == 0:
        return 0.0
    return max(0.0, givers.max() - takers.min()) / max(np.square(rows).sum(1).max(), 1e-300)


def _nasty(draw, count, dimension):
    rows = draw.normal(size=(count, dimension)) + draw.choice([0, 0.5, 2]) * draw.normal(
        size=dimension
    )
    for change in draw.choice(["zero", "equal", "opposite", "none"], size=2):
        i, j = draw.integers(count, size=2)
        rows[i] = {"zero": 0 * rows[i], "equal": rows[j], "opposite": -rows[j], "none": rows[i]}[
            change
        ]
    return rows


@pytest.mark.golden("minnorm-*.npz")
def test_minnorm_reproduces_fedlfs_program_and_torchjd(golden_case):
    rows = golden_case["updates"]
    point = _weights(rows) @ rows
    np.testing.assert_allclose(point, golden_case["fedlf_qp_direction"], atol=1e-6)
    np.testing.assert_allclose(point, golden_case["torchjd_mgda"], atol=1e-3)


def test_no_longer_than_torchjds_point():
    aggregation = pytest.importorskip("torchjd.aggregation")
    solver = aggregation.MGDA(epsilon=1e-10, max_iters=1000)
    draw = np.random.default_rng(0)
    for count, dimension in [(2, 5), (5, 8), (8, 3)]:
        rows = draw.normal(size=(count, dimension)) + 0.5
        found = np.linalg.norm(_weights(rows) @ rows)
        theirs = float(torch.linalg.vector_norm(solver(torch.from_numpy(rows))))
        assert theirs - 5e-3 <= found <= theirs + 1e-12


def _by_enumeration(rows):
    """Try every support: the least norm over all faces whose affine minimum is inside."""
    best = np.inf
    for size in range(1, len(rows) + 1):
        for support in itertools.combinations(range(len(rows)), size):
            block = rows[list(support)]
            system = np.block([[block @ block.T, np.ones((size, 1))], [np.ones(size), 0]])
            solution = np.linalg.lstsq(system, np.r_[np.zeros(size), 1], rcond=None)[0][:size]
            if solution.min() > -1e-9 and abs(solution.sum() - 1) < 1e-9:
                best = min(best, np.linalg.norm(solution @ block))
    return best


def test_equals_the_best_of_all_faces():
    draw = np.random.default_rng(1)
    for _ in range(60):
        rows = _nasty(draw, draw.integers(1, 6), draw.integers(1, 7))
        found = np.linalg.norm(_weights(rows) @ rows)
        assert found == pytest.approx(_by_enumeration(rows), abs=1e-7)


def test_every_optimum_is_proved_within_any_box():
    draw = np.random.default_rng(2)
    for _ in range(400):
        rows = _nasty(draw, draw.integers(1, 12), draw.integers(1, 15))
        centre = draw.dirichlet(np.full(len(rows), draw.choice([0.1, 1, 10])))
        width = draw.choice([0, 1e-4, 0.01, 0.1, 0.5, 1])
        lower, upper = np.maximum(0, centre - width), np.minimum(1, centre + width)
        found = _weights(rows, lower, upper)
        assert found.sum() == pytest.approx(1, abs=1e-12)
        assert (found >= lower - 1e-15).all()
        assert (found <= upper + 1e-15).all()
        assert _optimality_gap(rows, found, lower, upper) < 1e-13


@pytest.mark.parametrize("delta", [1e-2, 1e-3, 1e-4, 1e-6, 1e-8])
def test_nearly_opposite_pairs_in_a_narrow_box_are_finished(delta):
    draw = np.random.default_rng(6)
    for pairs in (10, 14, 18):
        half = draw.normal(size=(pairs, 20))
        rows = np.vstack([half, delta * draw.normal(size=half.shape) - half, half[:1] + half[1:2]])
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        centre = draw.dirichlet(np.ones(len(rows)))
        lower, upper = np.maximum(0, centre - 0.01), np.minimum(1, centre + 0.01)
        found = _weights(rows, lower, upper)
        assert found.sum() == pytest.approx(1, abs=1e-10)
        assert _optimality_gap(rows, found, lower, upper) < 1e-9


def test_the_box_agrees_with_slsqp():
    draw = np.random.default_rng(3)
    for _ in range(10):
        rows = draw.normal(size=(6, 9)) + 0.3
        centre = draw.dirichlet(np.ones(6))
        lower, upper = np.maximum(0, centre - 0.1), np.minimum(1, centre + 0.1)
        gram = rows @ rows.T
        theirs = minimize(
            lambda x, gram=gram: x @ gram @ x,
            centre,
            jac=lambda x, gram=gram: 2 * gram @ x,
            bounds=list(zip(lower, upper, strict=True)),
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        np.testing.assert_allclose(_weights(rows, lower, upper) @ rows, theirs.x @ rows, atol=1e-5)


@pytest.mark.parametrize(("count", "dimension"), [(101, 3000), (101, 64), (101, 16), (101, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_hundred_clients_agree_with_nnls_on_the_rows_themselves(count, dimension, dtype):
    draw = np.random.default_rng(4)
    rows = draw.normal(size=(count, dimension)) + 0.5 * draw.normal(size=dimension)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(dtype)
    gram = torch.from_numpy(rows @ rows.T)
    found = min_norm_weights(gram).numpy() @ rows
    system = np.vstack([rows.T.astype(np.float64), np.ones(count)])
    share, _ = nnls(system, np.r_[np.zeros(dimension), 1.0])
    expected = share / share.sum() @ rows
    # Rounding e of the Gram matrix moves a point that is zero, or nearly so, by sqrt(e).
    tolerance = 10 * np.sqrt(np.finfo(dtype).eps) if dimension < count else 1e-6
    np.testing.assert_allclose(found, expected, atol=tolerance)


def test_opposite_corners_meet_at_zero():
    rows = np.array([[1.0, 2.0], [-1.0, -2.0]])
    np.testing.assert_allclose(_weights(rows), [0.5, 0.5], rtol=1e-15)


def test_lengths_from_tiny_to_huge_keep_their_digits():
    """The hull of orthogonal corners: weights in proportion to 1 / ||r_k||^2."""
    lengths = np.array([1e-12, 3e-12, 1.0, 1e12])
    found = _weights(np.diag(lengths))
    expected = lengths**-2.0 / (lengths**-2.0).sum()
    np.testing.assert_allclose(found[:2], expected[:2], rtol=1e-12)
    assert found[2:].max() <= 1e-20


def test_the_order_of_the_corners_does_not_matter():
    draw = np.random.default_rng(5)
    rows, order = draw.normal(size=(7, 9)), draw.permutation(7)
    np.testing.assert_allclose(_weights(rows)[order], _weights(rows[order]), atol=1e-12)


def test_zero_rows_only_give_some_feasible_point():
    found = _weights(np.zeros((3, 2)), [0.1, 0.2, 0.0], [0.5, 0.5, 0.5])
    assert found.sum() == pytest.approx(1)
    assert (found >= [0.1, 0.2, 0.0]).all()


def test_bounds_that_leave_no_point_are_refused():
    with pytest.raises(InputError, match="lower, upper"):
        _weights(np.eye(2), [0.0, 0.0], [0.4, 0.4])
    with pytest.raises(InputError, match="gram"):
        min_norm_weights(torch.zeros(2, 3))


def test_the_descent_leaves_a_bound_at_the_first_corner():
    problem = _problem(torch.eye(3, dtype=torch.float64), None, None)
    found = _descend(problem, np.array([0.0, 0.5, 0.5]))
    np.testing.assert_allclose(found, np.full(3, 1 / 3))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (0, 1)])
def test_what_is_not_a_gram_matrix_is_refused(bad, place):
    gram = torch.eye(3, dtype=torch.float64)
    gram[place] = bad
    with pytest.raises(FedcraftError, match="NaN or Inf"):
        min_norm_weights(gram)
    with pytest.raises(FedcraftError, match="not a Gram matrix"):
        min_norm_weights(-torch.eye(3))
