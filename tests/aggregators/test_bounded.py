"""A bounded step: near copies with different targets cannot make it long, or make it jump."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fedcraft
from fedcraft.aggregators.craft import GAIN

DELTAS = [10.0**-power for power in range(1, 8)]


def cohort(clients: int, dimension: int, delta: float, dtype: torch.dtype) -> torch.Tensor:
    """Random updates of which the second is a copy of the first up to a relative ``delta``."""
    generator = torch.Generator().manual_seed(clients * 7 + dimension)
    rows = torch.randn(clients, dimension, generator=generator, dtype=torch.float64)
    rows[1] = rows[0] + delta * torch.randn(dimension, generator=generator, dtype=torch.float64)
    return rows.to(dtype)


def sizes(clients: int) -> list[float]:
    """Two colluders claim sizes 100 : 1; the others have one share each."""
    return [100.0, 1.0] + [10.0] * (clients - 2)


def longest(step, updates, weights) -> float:
    """||r|| + GAIN ||rho - U r|| in a first round, where r = 0."""
    rho = torch.tensor(weights, dtype=torch.float64)
    return GAIN * float((rho / rho.sum()).norm())


@pytest.mark.parametrize("constraint", ["equal", "at_least"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("clients", "dimension"), [(2, 10), (10, 600), (10, 60_000), (100, 10), (100, 600)]
)
def test_the_step_is_bounded_and_nobody_loses(clients, dimension, dtype, constraint):
    for delta in DELTAS:
        updates, weights = cohort(clients, dimension, delta, dtype), sizes(clients)
        craft = fedcraft.aggregator("craft", constraint=constraint)
        step = craft.aggregate(updates, weights=weights)

        assert float(step.direction.norm()) <= longest(step, updates, weights)
        if clients < dimension:  # otherwise no step can please everybody
            assert step.certificate.conflict_free, delta


def test_a_model_of_the_papers_size_is_bounded_too():
    updates = cohort(10, 600_000, 3e-4, torch.float32)
    free = fedcraft.aggregator("craft", clip=None).aggregate(updates, weights=sizes(10))
    step = fedcraft.aggregator("craft").aggregate(updates, weights=sizes(10))

    assert float(free.direction.norm()) > 500
    assert float(step.direction.norm()) < 1
    assert step.certificate.conflict_free


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_length_changes_continuously_with_the_copy(dtype):
    deltas = np.geomspace(1e-1, 1e-7, 200)
    rows = [cohort(10, 600, delta, dtype) for delta in deltas]
    steps = [fedcraft.aggregator("craft").aggregate(r, weights=sizes(10)) for r in rows]
    lengths = np.array([float(step.direction.norm()) for step in steps])

    # Three per cent from one copy to the next: the free step jumps by thousands at its cut-off.
    ratios = lengths[1:] / lengths[:-1]
    assert ratios.max() / 1 < 1.2
    assert ratios.min() > 1 / 1.2


def test_where_no_singular_value_is_small_the_bound_changes_no_bit():
    updates = torch.randn(10, 300, generator=torch.Generator().manual_seed(1))
    both = [fedcraft.aggregator("craft", clip=clip) for clip in ("auto", None)]
    for _ in range(3):
        one, two = (craft.aggregate(updates, layers=[100, 200]).direction for craft in both)
        assert torch.equal(one, two)


def test_the_released_code_has_no_bound():
    updates = cohort(10, 600, 1e-3, torch.float64)
    step = fedcraft.aggregator("craft", released_code=True).aggregate(updates, weights=sizes(10))
    assert float(step.direction.norm()) > 100


def test_the_certificate_shows_where_the_bound_acted():
    updates = torch.cat([torch.randn(3, 20), torch.eye(3, 20)], dim=1).double()
    updates[1, :20] = updates[0, :20] + 1e-4 * updates[1, :20]
    step = fedcraft.aggregator("craft").aggregate(updates, layers=[20, 20], weights=[100, 1, 10])

    assert step.certificate.layers.bounded.tolist() == [True, False]
    assert step.certificate.whole.bounded
    assert "bounded" in repr(step.certificate)
    assert math.isfinite(float(step.certificate.layers.residual[0]))
