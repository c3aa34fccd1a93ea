"""FedMDFG: a fair common descent direction and the search for its length."""

from __future__ import annotations

import numpy as np
import pytest

from fedcraft import aggregator
from fedcraft.errors import InputError, StateError


def _losses_along(case, theta, direction, clients):
    """f_i(w) = mean(a_i (w - c_i)^2) / 2 + 0.1 for these clients at theta - length direction."""

    def evaluate(length):
        point = theta - length * direction
        gaps = case["quad_scale"][clients] * (point - case["quad_center"][clients]) ** 2
        return 0.5 * gaps.mean(1) + 0.1

    return evaluate


@pytest.mark.golden("fedmdfg-*.npz")
def test_fedmdfg_reproduces_the_authors_and_their_step_length(golden_case, relative_error):
    rule = aggregator("fedmdfg", theta_deg=golden_case["theta_deg"], s=golden_case["s"])
    theta = golden_case["theta0"].astype(np.float64)
    for record in golden_case.rounds:
        step = rule.aggregate(record["grads"], losses=record["losses"], client_ids=record["ids"])
        assert relative_error(step.direction, record["d_final"]) < 1e-4
        evaluate = _losses_along(golden_case, theta, step.direction, record["ids"])
        length = rule.line_search(evaluate, golden_case["eta"])
        assert length == pytest.approx(record["chosen_lr"], rel=1e-4)
        assert relative_error(length * step.direction, record["step"]) < 1e-4
        assert rule.searched_clients == tuple(record["ids"].tolist())
        theta = record["theta"].astype(np.float64)


@pytest.fixture
def updates():
    return np.random.default_rng(4).normal(size=(4, 12)) + 0.4


def test_no_client_conflicts_with_the_step(updates):
    step = aggregator("fedmdfg").aggregate(updates, losses=[0.1, 3.0, 1.0, 1.0])
    assert step.certificate.conflict_free


def test_unequal_losses_turn_the_step_towards_the_worse_clients(updates):
    even = aggregator("fedmdfg", theta_deg=89).aggregate(updates, losses=[0.2, 0.2, 2.0, 2.0])
    fair = aggregator("fedmdfg", theta_deg=5).aggregate(updates, losses=[0.2, 0.2, 2.0, 2.0])

    def gain(step):
        return step.certificate.whole.cosine[2:].mean() - step.certificate.whole.cosine[:2].mean()

    assert gain(fair) > gain(even)


def test_a_loss_above_expectation_forces_the_fair_row(updates):
    calm, alarmed = (aggregator("fedmdfg", theta_deg=60) for _ in range(2))
    for rule in (calm, alarmed):
        rule.aggregate(updates, losses=[1.0, 1.1, 1.2, 1.3])
    same = calm.aggregate(updates, losses=[1.0, 1.1, 1.2, 1.3])
    worse = alarmed.aggregate(updates, losses=[1.0, 1.1, 1.2, 1.4])
    assert not np.allclose(same.direction, worse.direction)


def test_last_rounds_absent_clients_are_not_trampled():
    rule = aggregator("fedmdfg")
    rule.aggregate(np.array([[-1.0, 0.2]]), client_ids=["a"], losses=[1.0])
    step = rule.aggregate(np.array([[1.0, 0.2]]), client_ids=["b"], losses=[1.0])
    assert np.array([-1.0, 0.2]) @ step.direction > 0
    later = rule.aggregate(np.array([[1.0, 0.2]]), client_ids=["b"], losses=[1.0])
    np.testing.assert_allclose(later.direction, [1.0, 0.2], rtol=1e-12)


def test_one_client_gets_its_own_update(updates):
    step = aggregator("fedmdfg").aggregate(updates[:1], losses=[1.0])
    np.testing.assert_allclose(step.direction, updates[0], rtol=1e-12)


def test_nobody_with_a_measurable_update_means_no_step():
    rule = aggregator("fedmdfg")
    step = rule.aggregate(np.full((2, 3), 1e-9), losses=[1.0, 2.0])
    np.testing.assert_array_equal(step.direction, np.zeros(3))
    assert rule.line_search(lambda length: [], 0.3) == 0.3


def test_opposite_clients_stay_put():
    rule = aggregator("fedmdfg")
    step = rule.aggregate(np.array([[1.0, 2.0], [-1.0, -2.0]]), losses=[1.0, 1.0])
    np.testing.assert_array_equal(step.direction, np.zeros(2))


@pytest.mark.parametrize("losses", [[0.0] * 4, [2.0] * 4])
def test_equal_losses_use_no_fair_row(updates, losses):
    step = aggregator("fedmdfg").aggregate(updates, losses=losses)
    assert step.certificate.conflict_free
    reference = aggregator("fedmdfg", theta_deg=89).aggregate(updates, losses=[1, 1, 1, 1.001])
    np.testing.assert_array_equal(step.direction, reference.direction)


def _searching(losses, **params):
    rule = aggregator("fedmdfg", **params)
    rule.aggregate(np.eye(2), losses=losses)
    return rule


def test_the_search_takes_the_longest_step_that_helps_all_clients():
    rule = _searching([1.0, 1.0])
    assert rule.line_search(lambda length: [1 - length, 1 - length], 0.1) == pytest.approx(3.2)
    falls_below = 0.5
    found = rule.line_search(lambda length: [1 - length if length < falls_below else 2.0, 0.5], 0.1)
    assert found == pytest.approx(0.4)


def test_the_search_falls_back_on_the_total_then_on_the_least_loss():
    rule = _searching([1.0, 1.0])
    lower_total = rule.line_search(lambda length: [1.5, 0.1 if length < 1 else 1.0], 0.1)
    assert lower_total == pytest.approx(0.8)
    least = rule.line_search(lambda length: [1.0 + abs(length - 0.2), 2.0], 0.1)
    assert least == pytest.approx(0.2)


def test_the_search_survives_losses_that_blow_up():
    rule = _searching([1.0, 1.0])
    found = rule.line_search(lambda length: [np.nan if length > 0.1 else 0.9, 0.9], 0.1)
    assert found == pytest.approx(0.1)


def test_the_papers_evenness_is_stricter_than_the_codes():
    def evaluate(length):
        return [0.05, 1.9] if length > 1 else [0.09, 1.0]

    params = {"theta_deg": 5.0}
    code = _searching([0.1, 2.0], **params).line_search(evaluate, 0.1)
    paper = _searching([0.1, 2.0], evenness="paper", **params).line_search(evaluate, 0.1)
    assert (code, paper) == (pytest.approx(3.2), pytest.approx(0.8))


@pytest.mark.parametrize(("rise", "by_paper"), [(0.9e-4, 0.1 / 32), (-1.1e-4, 3.2)])
def test_the_codes_armijo_passes_where_every_loss_rises_and_the_papers_does_not(rise, by_paper):
    slope = 0.5  # <g_i, g_t> for two orthogonal unit updates

    def evaluate(length):
        return [1 + rise * slope * length] * 2

    code = _searching([1.0, 1.0]).line_search(evaluate, 0.1)
    paper = _searching([1.0, 1.0], armijo="paper").line_search(evaluate, 0.1)
    assert (code, paper) == (pytest.approx(3.2), pytest.approx(by_paper))


def test_a_search_before_any_round_or_with_other_losses_is_refused():
    with pytest.raises(StateError, match="line_search"):
        aggregator("fedmdfg").line_search(lambda length: [1.0], 0.1)
    with pytest.raises(InputError, match="evaluate"):
        _searching([1.0, 1.0]).line_search(lambda length: [1.0], 0.1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("theta_deg", 0),
        ("theta_deg", 90),
        ("s", -1),
        ("eps", -1.0),
        ("evenness", "both"),
        ("armijo", "no"),
    ],
)
def test_impossible_parameters_are_refused(name, value):
    with pytest.raises(InputError, match=name):
        aggregator("fedmdfg", **{name: value})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_short_common_direction_is_not_taken_for_rounding(dtype):
    sine = 1e-3
    cosine = (1 - sine**2) ** 0.5
    updates = np.array([[cosine, sine], [-cosine, sine]], dtype=dtype)
    step = aggregator("fedmdfg").aggregate(updates, losses=[1.0, 1.0])
    np.testing.assert_allclose(step.direction, [0, sine], atol=1e-6)


def test_uploads_of_the_round_before_last_do_not_count():
    """Also where nobody moved in the last one."""
    rng = np.random.default_rng(0)
    first, last = rng.normal(size=(2, 3, 5))
    found = []
    for rounds in ([first, np.zeros((3, 5)), last], [np.zeros((3, 5)), last]):
        rule = aggregator("fedmdfg")
        for number, updates in enumerate(rounds):
            ids = [10 * (len(rounds) - number) + k for k in range(3)]
            step = rule.aggregate(updates, losses=[1.0, 1.0, 1.0], client_ids=ids)
        found.append(step.direction)
    np.testing.assert_array_equal(*found)
