"""Targets that follow agreement, the reliability of a mean, and lengths that follow the average."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedcraft
from fedcraft.aggregators.agreement import Agreement
from fedcraft.errors import InputError
from fedcraft.linalg import UnitRows


def rows(clients: int = 8, dimension: int = 50, common: float = 0.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(clients, dimension, generator=generator, dtype=torch.float64)
    return made + common * torch.randn(dimension, generator=generator, dtype=torch.float64)


def agreement(updates: torch.Tensor, r: torch.Tensor | None = None) -> Agreement:
    units = UnitRows.of((updates @ updates.T).unsqueeze(0))
    shares = units.renormalised(torch.ones(len(updates), dtype=torch.float64))
    dots = torch.zeros_like(shares) if r is None else (units.scale * (updates @ r)).reshape(1, -1)
    return Agreement(units.kernel, shares, dots)


def test_reliability_is_zero_for_orthogonal_clients_and_one_for_equal_ones():
    assert float(agreement(torch.eye(5, dtype=torch.float64)).reliability) == pytest.approx(0)
    same = torch.ones(5, 3, dtype=torch.float64)
    assert float(agreement(same).reliability) == pytest.approx(1)
    assert float(agreement(same[:1]).reliability) == pytest.approx(1)


def test_reliability_is_that_of_spearman_and_brown():
    updates = rows(common=1.0)
    units = torch.nn.functional.normalize(updates, dim=1)
    cosines = units @ units.T
    m = len(updates)
    mean = float((cosines.sum() - m) / (m * (m - 1)))
    expected = m * mean / (1 + (m - 1) * mean)
    assert float(agreement(updates).reliability) == pytest.approx(expected)


def test_cosines_are_those_with_the_mean_of_the_unit_updates():
    updates = rows(common=0.5)
    units = torch.nn.functional.normalize(updates, dim=1)
    mean = units.mean(0)
    found = agreement(updates)
    torch.testing.assert_close(found.cosines[0], units @ mean / mean.norm())
    for client in range(len(units)):
        others = (units.sum(0) - units[client]) / len(units)
        expected = units[client] @ others / others.norm()
        assert float(found.others_cosines[0, client]) == pytest.approx(float(expected))


def test_memory_gives_way_to_a_reliable_mean_that_goes_on():
    updates = rows(common=3.0)
    along = torch.nn.functional.normalize(updates, dim=1).mean(0)
    along = along / along.norm()
    on, back = agreement(updates, along), agreement(updates, -along)
    assert float(on.persistence) == pytest.approx(1)
    assert float(on.memory) == pytest.approx(0.9 * (1 - float(on.reliability)))
    # Clients that only pull back after too long a step are not followed.
    assert float(back.memory) == pytest.approx(0.9)
    assert float(back.trust) == pytest.approx(0, abs=1e-12)


def test_memory_gives_way_where_any_two_clients_agree():
    """A mean without noise needs no memory, whatever the direction of the last step was."""
    strangers = agreement(torch.eye(4, dtype=torch.float64))
    assert float(strangers.memory) == pytest.approx(0.9)
    same = agreement(torch.ones(4, 3, dtype=torch.float64))
    assert float(same.between_clients) == pytest.approx(1)
    assert float(same.memory) == pytest.approx(0)
    updates = rows(common=1.0)
    units = torch.nn.functional.normalize(updates, dim=1)
    mean = float(((units @ units.T).sum() - 8) / 56)
    assert float(agreement(updates).memory) == pytest.approx(0.9 * (1 - mean))


def test_a_mean_is_followed_where_clients_agree_or_where_it_continues_the_last_step():
    updates = torch.eye(4, dtype=torch.float64)  # no two clients have anything in common
    mean = updates.mean(0) / updates.mean(0).norm()
    across = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64) / 2
    assert float(agreement(updates, across).trust) == pytest.approx(0)
    assert float(agreement(updates, mean).trust) == pytest.approx(1)
    same = agreement(torch.ones(4, 4, dtype=torch.float64), across)
    assert float(same.trust) == pytest.approx(float(same.reliability)) == pytest.approx(1)


def test_lengths_count_as_far_as_the_clients_agree_round_after_round():
    lengths = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
    even = torch.full((1, 3), 1 / 3, dtype=torch.float64)
    ones = torch.ones(3, 3, dtype=torch.float64)
    along = ones[0] / ones[0].norm()
    strangers = agreement(torch.eye(3, dtype=torch.float64), along).counting(lengths)
    torch.testing.assert_close(strangers.weights, even)
    once = agreement(ones).counting(lengths)
    torch.testing.assert_close(once.weights, even)
    again = agreement(ones, along).counting(lengths)
    torch.testing.assert_close(again.weights, lengths / 7)
    torch.testing.assert_close(again.shares, even)


def test_clients_that_keep_agreeing_are_led_along_fedavgs_average():
    """Nearly equal directions, different lengths: the step has the direction of the raw average."""
    updates = torch.tensor([[1.0, 0.1, 0.0], [1.0, -0.1, 0.0]], dtype=torch.float64)
    updates[1] *= 2
    options = {"constraint": "at_least", "target": "agreement", "reference_weight": "auto"}
    craft = fedcraft.aggregator("craft", agreement="auto", **options)
    craft.aggregate(updates)
    step = craft.aggregate(updates).direction
    average = updates.mean(0)
    cosine = float(step @ average / (step.norm() * average.norm()))
    even = torch.nn.functional.normalize(updates, dim=1).mean(0)
    assert cosine > 1 - 1e-5
    assert cosine > float(even @ average / (even.norm() * average.norm()))


@pytest.mark.parametrize("constraint", ["equal", "at_least"])
def test_with_agreement_one_nobody_gets_less_than_the_mean_would_give(constraint):
    updates = rows(common=0.3)
    craft = fedcraft.aggregator("craft", target="agreement", constraint=constraint, power=0.0)
    craft.aggregate(rows(seed=4))
    step = craft.aggregate(updates)
    units = torch.nn.functional.normalize(updates, dim=1)
    mean = units.mean(0) / units.mean(0).norm()
    least = torch.maximum(units @ mean, torch.full((8,), 1 / 8, dtype=torch.float64))
    assert bool((units @ step.direction >= least - 1e-9).all())
    assert step.certificate.conflict_free


def test_shares_follow_a_power_of_the_sizes():
    updates, weights = torch.eye(3, dtype=torch.float64), [1, 4, 9]
    root = fedcraft.aggregator("craft", power=0.5).aggregate(updates, weights=weights)
    np.testing.assert_allclose(root.direction, np.array([1, 2, 3]) / 6)
    none = fedcraft.aggregator("craft", power=0.0).aggregate(updates, weights=weights)
    np.testing.assert_allclose(none.direction, 1 / 3)


def test_the_reference_counts_by_its_weight():
    first, second = rows(seed=1), rows(seed=2)
    craft = fedcraft.aggregator("craft", reference_weight=0.5, eps=0.0)
    last = craft.aggregate(first).direction
    step = craft.aggregate(second).direction
    units = torch.nn.functional.normalize(second, dim=1)
    r = 0.5 * last / last.norm()
    expected = r + torch.linalg.pinv(units) @ (1 / 8 - units @ r)
    torch.testing.assert_close(step, expected)


@pytest.mark.parametrize("rule", ["craft", "config", "layer_momentum", "average"])
def test_every_rule_takes_a_length(rule):
    updates, weights = rows(common=1.0), torch.arange(1, 9)
    average = (weights / weights.sum()).double() @ updates
    sides = [slice(0, 20), slice(20, 50)]

    def step(length: str) -> torch.Tensor:
        made = fedcraft.aggregator(rule, length=length)
        return made.aggregate(updates, weights=weights, layers=[20, 30]).direction

    own, unit, averaged = step("own"), step("unit"), step("average")
    for side in sides:
        assert float(unit[side].norm()) == pytest.approx(1)
        assert float(averaged[side].norm()) == pytest.approx(float(average[side].norm()))
        for scaled in (unit, averaged):
            assert float(scaled[side] @ own[side]) == pytest.approx(
                float(scaled[side].norm() * own[side].norm())
            )
    progress = step("progress")
    for side in sides:
        reached = float(progress[side] @ average[side] / average[side].norm())
        limit = 1.5 * float(average[side].norm())
        length = float(progress[side].norm())
        assert length <= limit + 1e-12
        assert reached == pytest.approx(float(average[side].norm())) or length == pytest.approx(
            limit
        )


def test_one_client_that_blew_up_does_not_set_the_clipped_length():
    updates = rows(common=1.0)
    calm = fedcraft.aggregator("craft", length="clipped_average").aggregate(updates).direction
    updates[3] *= 1e6
    wild = fedcraft.aggregator("craft", length="clipped_average").aggregate(updates).direction
    assert float(wild.norm()) < 2 * float(calm.norm())
    average = fedcraft.aggregator("craft", length="average").aggregate(updates).direction
    assert float(average.norm()) > 1e4 * float(calm.norm())


def test_a_resized_step_keeps_its_certificate():
    made = fedcraft.aggregator("craft", length="average", eps=0.0)
    certificate = made.aggregate(rows(common=1.0)).certificate
    assert float(certificate.layers.residual[0]) < 1e-12
    assert certificate.conflict_free


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"target": "agreement", "agreement": 2.0}, "agreement"),
        ({"reference_weight": "some"}, "reference_weight"),
        ({"power": -1.0}, "power"),
        ({"length": "long"}, "length"),
    ],
)
def test_bad_parameters_are_named(params, name):
    with pytest.raises(InputError, match=name):
        fedcraft.aggregator("craft", **params)


def test_at_least_is_priority_constrained_descent_with_the_reference_first():
    """PCD keeps close to its first row while each other row makes its share of progress."""
    torchjd = pytest.importorskip("torchjd.aggregation")
    for seed in range(5):
        updates, reference = rows(5, 9, seed=seed), rows(1, 9, seed=90 + seed)[0]
        craft = fedcraft.aggregator("craft", constraint="at_least", eps=0.0)
        craft.load_state_dict({"reference": reference, "rule": "Craft"})
        weights = torch.tensor([1.0, 2, 3, 4, 5], dtype=torch.float64)
        ours = craft.aggregate(updates, weights=weights).direction
        pcd = torchjd.PCD(tau=weights / weights.sum(), eps=0.0)
        theirs = pcd(torch.vstack([reference, updates]))
        torch.testing.assert_close(ours / ours.norm(), theirs / theirs.norm())
