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
