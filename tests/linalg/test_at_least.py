"""Least distance under one-sided demands: exact while float64 can distinguish the clients."""

from __future__ import annotations

import pytest
import torch

from fedcraft.linalg.at_least import at_least_dual, at_least_duals


def _nearly_opposite(delta, seed):
    draw = torch.Generator().manual_seed(seed)
    row, other = torch.randn(2, 10, generator=draw, dtype=torch.float64)
    return torch.nn.functional.normalize(torch.stack([row, delta * other - row]), dim=1)


@pytest.mark.parametrize("delta", [1e-2, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6])
def test_demands_that_can_be_met_are_met(delta):
    demands = torch.full((2,), 0.5, dtype=torch.float64)
    for seed in range(10):
        units = _nearly_opposite(delta, seed)
        found = units.T @ at_least_dual(units @ units.T, demands)
        shortest = torch.linalg.pinv(units, rtol=1e-14) @ demands
        assert float((units @ found).min()) > 0.5 - 1e-2
        torch.testing.assert_close(found, shortest, rtol=1e-2, atol=1e-2 * float(shortest.norm()))


@pytest.mark.parametrize("delta", [1e-8, 0.0])
def test_clients_that_are_nearly_opposite_make_no_giant_step(delta):
    demands = torch.full((2,), 0.5, dtype=torch.float64)
    for seed in range(10):
        units = _nearly_opposite(delta, seed)
        found = units.T @ at_least_dual(units @ units.T, demands)
        assert float(found.norm()) < 1e-3


def test_who_has_more_than_asked_is_left_alone():
    kernel = torch.eye(3, dtype=torch.float64)
    gap = torch.tensor([0.5, -2.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(at_least_dual(kernel, gap), gap.clamp(min=0))


@pytest.mark.parametrize(("clients", "width"), [(8, 40), (30, 4), (30, 12), (12, 12)])
def test_many_demands_are_answered_as_each_alone(clients, width):
    """Also where the clients span few dimensions, for which the batch has its own factor."""
    draw = torch.Generator().manual_seed(clients + width)
    rows = torch.randn(clients, width, generator=draw, dtype=torch.float64)
    units = torch.nn.functional.normalize(rows + 0.3, dim=1)
    kernel = units @ units.T
    together = at_least_duals(kernel, -kernel)
    assert bool((together >= -1e-6).all())
    for client in range(clients):
        projected = units[client] + units.T @ together[client]
        alone = units[client] + units.T @ at_least_dual(kernel, -kernel[client])
        torch.testing.assert_close(projected, alone, rtol=0, atol=1e-6)
        assert float((units @ projected).min()) > -1e-6
        # Moreau: what was added is orthogonal to the projection.
        assert abs(float(projected @ (projected - units[client]))) < 1e-6
