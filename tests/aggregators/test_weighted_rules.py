"""The conflict-aware rules agree with TorchJD, with general solvers or with the papers' loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear, minimize
from torchjd import aggregation as torchjd

from fedcraft import aggregator
from fedcraft.aggregators.visits import visits

SIZES = [7, 9, 14]
RULES = (
    "upgrad",
    "dualproj",
    "pcd",
    "fairgrad",
    "nash_mtl",
    "cagrad",
    "imtl_g",
    "aligned_mtl",
    "pcgrad",
    "gradvac",
    "fedgh",
    "adafed",
)


def updates_of(seed, count=5, width=30):
    """Updates in conflict, of different lengths."""
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(count, width)) * draw.uniform(0.2, 3, size=(count, 1))
    rows[1] = rows[1] - 0.8 * rows[0]
    return rows


def step(rule, updates, weights=None, **params):
    losses = np.linspace(0.5, 2, len(updates))
    made = aggregator(rule, by_layer=False, **params)
    return made.aggregate(updates, weights=weights, losses=losses).direction


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_by_layer_is_the_rule_on_every_block(rule):
    rows, losses = updates_of(3), np.linspace(0.5, 2, 5)
    weights = [1, 2, 3, 4, 5]
    found = aggregator(rule).aggregate(rows, layers=SIZES, weights=weights, losses=losses)
    blocks = np.split(rows, np.cumsum(SIZES)[:-1], axis=1)
    expected = np.concatenate([step(rule, block, weights) for block in blocks])
    np.testing.assert_allclose(found.direction, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("rule", "params", "oracle", "tolerance"),
    [
        ("imtl_g", {}, torchjd.IMTLG, 1e-9),
        ("aligned_mtl", {}, torchjd.AlignedMTL, 1e-9),
        ("aligned_mtl", {"balance": "rmse"}, lambda: torchjd.AlignedMTL(scale_mode="rmse"), 1e-9),
        ("fairgrad", {"alpha": 2.0}, lambda: torchjd.FairGrad(2.0), 1e-4),
        ("fairgrad", {"alpha": 0.5}, lambda: torchjd.FairGrad(0.5), 1e-4),
        ("nash_mtl", {}, lambda: torchjd.FairGrad(1.0), 1e-4),
    ],
)
def test_equal_weights_give_the_step_of_torchjd(seed, rule, params, oracle, tolerance):
    rows = updates_of(seed)
    expected = oracle()(torch.from_numpy(rows)).numpy()
    error = np.abs(step(rule, rows, **params) - expected).max()
    assert error <= tolerance * np.abs(expected).max()


def nearest_allowed(target, rows):
    """argmin ||y - target|| subject to rows y >= 0, from the dual problem, a non-negative fit."""
    found = lsq_linear(rows.T, -target, bounds=(0, np.inf), method="bvls", tol=1e-15)
    return target + rows.T @ found.x


NASTY = {
    "plain": updates_of(0),
    "more clients than coordinates": updates_of(1, count=8, width=4),
    "opposite": np.vstack([updates_of(2), -updates_of(2)[:1]]),
    "duplicates": updates_of(4)[[0, 1, 1, 2]],
    "a zero row": updates_of(5) * np.array([1, 1, 0, 1, 1])[:, None],
}


@pytest.mark.parametrize("kind", NASTY)
def test_dualproj_and_upgrad_are_projections_onto_the_dual_cone(kind):
    rows = NASTY[kind]
    rho = np.arange(1, len(rows) + 1) / np.arange(1, len(rows) + 1).sum()
    expected = nearest_allowed(rho @ rows, rows)
    np.testing.assert_allclose(step("dualproj", rows, rho), expected, atol=2e-6)
    expected = sum(nearest_allowed(r * row, rows) for r, row in zip(rho, rows, strict=True))
    found = step("upgrad", rows, rho)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (rows @ found >= -1e-7).all()


@pytest.mark.parametrize("c", [0.3, 0.5, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_cagrad_serves_the_worst_client_best_in_its_ball(seed, c):
    rows, rho = updates_of(seed), np.array([1, 2, 3, 2, 1]) / 9
    average = rho @ rows
    gram, radius = rows @ rows.T, c * np.linalg.norm(average)
    dual = minimize(
        lambda w: w @ gram @ rho + radius * np.sqrt(w @ gram @ w),
        np.full(5, 0.2),
        jac=lambda w: gram @ rho + radius * gram @ w / np.sqrt(w @ gram @ w),
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    found = step("cagrad", rows, rho, c=c)
    assert np.linalg.norm(found - average) == pytest.approx(radius, rel=1e-9)
    assert (rows @ found).min() == pytest.approx(dual.fun, rel=1e-7, abs=1e-9)


def test_cagrad_without_a_ball_is_the_average_and_with_a_large_one_has_no_conflict():
    rows = updates_of(6)
    np.testing.assert_allclose(step("cagrad", rows, c=0.0), rows.mean(0), atol=1e-12)
    assert (rows @ step("cagrad", rows, c=1.0) >= -1e-9).all()


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_fairgrad_solves_its_equation_with_data_sizes(alpha):
    rows, rho = updates_of(7), np.array([1, 2, 3, 2, 2]) / 10
    found = step("fairgrad", rows, rho, alpha=alpha)
    gains = rows @ found
    assert (gains > 0).all()
    expected = (5 * rho * gains**-alpha) @ rows
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(found).max())


def test_nash_mtl_has_the_length_of_the_root_of_the_number_of_clients():
    assert np.linalg.norm(step("nash_mtl", updates_of(8))) == pytest.approx(5**0.5, rel=1e-6)


@pytest.mark.parametrize("rows", [NASTY["plain"], NASTY["more clients than coordinates"]])
def test_imtl_g_points_where_config_does(rows):
    found = step("imtl_g", rows)
    other = aggregator("config", meaning="target", weighting="ones").aggregate(rows).direction
    cosine = found @ other / np.linalg.norm(found) / np.linalg.norm(other)
    assert cosine == pytest.approx(1, abs=1e-9)


def test_imtl_g_does_not_step_against_every_client():
    """A short update between two others gets a negative weight that outweighs theirs."""
    rows = np.array([[0.8, 0.6, 0.0], [0.8, -0.6, 0.0], [0.01, 0.0, 0.001]])
    gram = rows @ rows.T
    weights = np.linalg.solve(gram, np.sqrt(np.diag(gram)))
    assert weights.sum() < 0
    assert (rows @ (weights @ rows) / weights.sum() < 0).all()
    np.testing.assert_array_equal(step("imtl_g", rows), 0)


def _projected(rows, orders):
    pieces = []
    for i, order in enumerate(orders):
        piece = rows[i].copy()
        for j in order:
            if j != i and piece @ rows[j] < 0:
                piece -= piece @ rows[j] / (rows[j] @ rows[j]) * rows[j]
        pieces.append(piece)
    return np.array(pieces)


def test_pcgrad_is_the_paper_s_loop_in_the_order_of_its_stream():
    rho = np.array([1, 2, 3, 2, 2]) / 10
    rule = aggregator("pcgrad", by_layer=False, seed=4)
    for number in (1, 2):
        rows = updates_of(number)
        orders = visits(range(5), 4, "pcgrad", number).numpy()
        found = rule.aggregate(rows, weights=rho).direction
        np.testing.assert_allclose(found, rho @ _projected(rows, orders), atol=1e-12)


def test_the_order_of_visits_follows_the_client_and_the_round():
    plain = visits([3, 5, "a"], 0, "pcgrad", 1).numpy()
    swapped = visits(["a", 3, 5], 0, "pcgrad", 1).numpy()
    names = np.array(["a", "3", "5"])
    np.testing.assert_array_equal(np.array(["3", "5", "a"])[plain][[2, 0, 1]], names[swapped])
    many = [visits(range(9), 0, "pcgrad", number).numpy() for number in (1, 2)]
    assert (np.sort(many[0]) == np.arange(9)).all()
    assert (many[0] != many[1]).any()


def test_gradvac_is_the_paper_s_loop_and_remembers_pairs():
    rho, beta = np.array([1, 2, 3, 2, 2]) / 10, 0.5
    rule, targets = aggregator("gradvac", by_layer=False, beta=beta), np.zeros((5, 5))
    turned = 0
    for number in (1, 2, 3):
        rows = updates_of(number) + 0.5
        pieces = rows.copy()
        for i, order in enumerate(visits(range(5), 0, "gradvac", number).tolist()):
            for j in order:
                if i == j:
                    continue
                own, other = np.linalg.norm(pieces[i]), np.linalg.norm(rows[j])
                phi, target = pieces[i] @ rows[j] / own / other, targets[i, j]
                if phi < target:
                    sine = np.sqrt(1 - target**2)
                    amount = own * (target * np.sqrt(1 - phi**2) - phi * sine) / (other * sine)
                    pieces[i] += amount * rows[j]
                    turned += target > 0
                targets[i, j] = (1 - beta) * target + beta * phi
        found = rule.aggregate(rows, weights=rho).direction
        np.testing.assert_allclose(found, rho @ pieces, rtol=1e-9, atol=1e-10)
    assert turned > 0
    np.testing.assert_allclose(rule.memory["targets"][0], targets, atol=1e-12)


def test_gradvac_keeps_the_targets_of_absent_clients():
    rule = aggregator("gradvac", beta=0.5)
    rule.aggregate(updates_of(0), client_ids=[0, 1, 2, 3, 4])
    kept = rule.memory["targets"][:, :2, :2].clone()
    rule.aggregate(updates_of(1, count=2), client_ids=["new", 3])
    torch.testing.assert_close(rule.memory["targets"][:, :2, :2], kept)
    assert rule.memory["clients"] == [0, 1, 2, 3, 4, "new"]


@pytest.mark.parametrize("tau", [0.02, 0.5])
def test_pcd_is_torchjd_s_with_the_average_as_the_primary_objective(tau):
    rule = aggregator("pcd", by_layer=False, tau=tau, beta=0.9)
    oracle = torchjd.PCD(tau=tau, beta=0.9)
    bent = 0
    for seed in range(4):
        rows = torch.from_numpy(updates_of(seed))
        expected = oracle(torch.cat([rows.mean(0, keepdim=True), rows]))
        found = rule.aggregate(rows).direction
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
        bent += not torch.allclose(found, rows.mean(0))
    assert bent


def test_pcd_drops_constraints_that_cannot_be_met():
    rows = np.array([[1.0, 1.0], [-1.0, -1.0], [0.0, 3.0]])
    np.testing.assert_allclose(step("pcd", rows), rows.mean(0), atol=1e-9)


def test_fedgh_projects_both_of_a_pair_by_hand():
    rows = np.array([[1.0, 0.0], [-1.0, 1.0]])
    # p_1 = (1, 0) + 1/2 (-1, 1), p_2 = (-1, 1) + (1, 0)
    found = step("fedgh", rows, [1, 3])
    np.testing.assert_allclose(found, [0.125, 0.125 + 0.75], atol=1e-12)


def test_fedgh_is_the_loop_over_pairs():
    rows, rho = updates_of(9), np.array([1, 2, 3, 2, 2]) / 10
    pieces = rows.copy()
    for i in range(5):
        for j in range(i + 1, 5):
            first, second = pieces[i].copy(), pieces[j].copy()
            dot = first @ second
            if dot < 0:
                pieces[i] -= dot / (second @ second) * second
                pieces[j] -= dot / (first @ first) * first
    np.testing.assert_allclose(step("fedgh", rows, rho), rho @ pieces, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0])
def test_adafed_is_the_shortest_point_of_the_orthogonalised_hull(gamma):
    rows, rates = updates_of(10), np.linspace(0.5, 2, 5) ** gamma
    made: list[np.ndarray] = []
    for row, rate in zip(rows, rates, strict=True):
        shares = [row @ other / (other @ other) for other in made]
        rest = row - sum(s * other for s, other in zip(shares, made, strict=True))
        made.append(rest / (rate - sum(shares)))
    squares = np.array([other @ other for other in made])
    expected = (1 / squares / (1 / squares).sum()) @ np.array(made)
    found = step("adafed", rows, gamma=gamma)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(rows @ found / rates, found @ found, rtol=1e-9)


@pytest.mark.parametrize(("second", "expected"), [(2.0, [0.2, 0.6]), (0.25, [1.6, -0.8])])
@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_adafed_by_hand(second, expected, order):
    # h_1 = (2, 0), h_2 = ((1, 1) - (2, 0) / 2) / (F_2 - 1/2) = (0, 2/3) or (0, -4);
    # shares 1/4 : 9/4 = 1 : 9, or 1/4 : 1/16 = 4 : 1. The order of the clients does not matter.
    rows, losses = np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([1.0, second])
    made = aggregator("adafed", by_layer=False)
    found = made.aggregate(rows[order], losses=losses[order]).direction
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_fedexp_by_hand_for_every_layer():
    # Layer 1: a = (1, 1), S = 4, rate max(1, 4 / (2 (2 + 0.004))) = 1.
    # Layer 2: a = (3, 0), S = 25, rate 25 / (2 (9 + 0.025)) = 25 / 18.05.
    rows = np.array([[2.0, 0.0, 3.0, 4.0], [0.0, 2.0, 3.0, -4.0]])
    found = aggregator("average", length="fedexp").aggregate(rows, layers=[2, 2]).direction
    np.testing.assert_allclose(found, [1, 1, 75 / 18.05, 0], atol=1e-12)


def test_fedexp_is_the_average_at_its_extrapolated_rate():
    rows, rho = updates_of(11), np.array([1, 2, 3, 2, 2]) / 10
    found = aggregator("average", length="fedexp").aggregate(rows, weights=rho).direction
    average, mean = rho @ rows, rho @ (rows**2).sum(1)
    rate = mean / (2 * (average @ average + 1e-3 * mean))
    assert rate > 1
    np.testing.assert_allclose(found, rate * average, rtol=1e-9)
    agreed = np.tile(rows[0], (5, 1))
    same = aggregator("average", length="fedexp").aggregate(agreed).direction
    np.testing.assert_allclose(same, rows[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("rule", "name", "value"),
    [
        ("adafed", "gamma", -1),
        ("aligned_mtl", "balance", "max"),
        ("cagrad", "c", -0.1),
        ("fairgrad", "alpha", -1),
        ("gradvac", "beta", 2),
        ("pcd", "tau", 1.5),
        ("pcgrad", "seed", 0.5),
    ],
)
def test_a_parameter_out_of_range_is_named(rule, name, value):
    with pytest.raises(ValueError, match=name):
        aggregator(rule, **{name: value})
