"""The control keeps CRAFT's memory and scale, and nothing else of it."""

from __future__ import annotations

import numpy as np

import fedcraft


def test_it_adds_the_unit_last_step_and_the_mean_of_unit_updates():
    control = fedcraft.aggregator("layer_momentum")
    first = control.aggregate(np.array([[3.0, 4.0, 7.0], [0.0, 2.0, 0.0]]), layers=[2, 1])
    np.testing.assert_allclose(first.direction, [0.3, 0.9, 0.5])
    second = control.aggregate(np.array([[1.0, 0.0, -1.0]]), layers=[2, 1])
    length = np.hypot(0.3, 0.9)
    np.testing.assert_allclose(second.direction, [0.3 / length + 1, 0.9 / length, 0.0])


def test_it_does_not_resolve_conflicts():
    updates = np.array([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.2]])
    assert (
        fedcraft.aggregator("layer_momentum").aggregate(updates).certificate.conflicting_clients()
    )
    assert fedcraft.aggregator("craft").aggregate(updates[1:]).certificate.conflict_free


def test_a_layer_without_updates_does_not_move():
    """As CRAFT's: the memory alone moves nothing."""
    rule = fedcraft.aggregator("layer_momentum")
    moved = np.random.default_rng(0).normal(size=(3, 4))
    dead = np.hstack([moved[:, :2], np.zeros((3, 2))])
    rule.aggregate(moved, layers=[2, 2])
    for _ in range(2):
        step = rule.aggregate(dead, layers=[2, 2])
        np.testing.assert_array_equal(step.direction[2:], 0)
        assert np.linalg.norm(step.direction[:2]) > 0.5
