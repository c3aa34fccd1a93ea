"""How far each client steers the step, against the step computed again without it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedcraft import aggregator
from fedcraft.aggregators import guard
from fedcraft.updates import RoundContext

LAYERS = [15, 25]


def rows(seed=0, clients=6):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(clients, sum(LAYERS))) + 0.3


def measured(rule, updates, **given):
    rule.context = RoundContext(torch.zeros(sum(LAYERS)), 0, 1, 0.1, 1.0, measures_clients=True)
    return rule.aggregate(updates, layers=LAYERS, **given)


def moved(make, updates, row, **given):
    """||g - g_{-i}|| / ||g||, by aggregating without the client."""
    rest = np.arange(len(updates)) != row
    whole = make().aggregate(updates, layers=LAYERS, **given).direction
    fewer = {name: np.asarray(values)[rest] for name, values in given.items()}
    without = make().aggregate(updates[rest], layers=LAYERS, **fewer).direction
    return np.linalg.norm(whole - without) / np.linalg.norm(whole)


@pytest.mark.parametrize("length", ["own", "average"])
def test_influence_on_a_projection_is_leave_one_out(length):
    def make():
        return aggregator("config", weighting="ones")

    updates = rows()
    found = measured(aggregator("config", weighting="ones", length=length), updates)
    if length == "own":
        for row in range(len(updates)):
            influence = float(found.certificate.clients.influence[row])
            assert influence == pytest.approx(moved(make, updates, row), rel=1e-8)
    assert bool((found.certificate.clients.influence > 0).all())


def test_influence_on_craft_starts_from_the_reference():
    updates, rule = rows(2), aggregator("craft", eps=0.0)
    last_step = torch.from_numpy(rule.aggregate(rows(1), layers=LAYERS).direction)
    whole = rule.aggregate(updates, layers=LAYERS)
    units = torch.from_numpy(updates)
    for row in (0, 4):
        kept = [client for client in range(6) if client != row]
        # Without the client the others keep <u_j, g> as it was: solve that by least squares.
        expected = 0.0
        for part in (slice(0, 15), slice(15, 40)):
            unit = units[:, part] / units[:, part].norm(dim=1, keepdim=True)
            last = last_step[part]
            r, g = last / last.norm(), torch.from_numpy(whole.direction)[part]
            without = r + torch.linalg.pinv(unit[kept]) @ (unit[kept] @ (g - r))
            expected += float((g - without).square().sum())
        step = float(np.linalg.norm(whole.direction))
        found = float(whole.certificate.clients.influence[row])
        assert found == pytest.approx(expected**0.5 / step, rel=1e-6)


@pytest.mark.parametrize("weighting", ["data", "uniform"])
def test_influence_on_an_average_is_leave_one_out(weighting):
    weights = np.arange(1.0, 7)
    rule = aggregator("average", weighting=weighting)
    found = measured(rule, rows(), weights=weights).certificate.clients.influence

    def make():
        return aggregator("average", weighting=weighting)

    for row in range(6):
        expected = moved(make, rows(), row, weights=weights)
        assert float(found[row]) == pytest.approx(expected, rel=1e-10)


def test_a_demand_that_does_not_bind_has_no_influence():
    updates = np.vstack([rows(3, 1), 2 * rows(3, 1), rows(4, 3)])
    step = measured(aggregator("craft", constraint="at_least", target="uniform"), updates)
    influence = step.certificate.clients.influence
    assert float(influence[:2].max()) < 0.01 * float(influence[2:].max())


def test_agreement_names_the_client_that_pulls_against_the_others():
    updates = rows(5, 8) + 1.0
    updates[3] *= -1
    measurements = measured(aggregator("average"), updates).certificate.clients
    assert int(measurements.agreement.argmin()) == 3
    assert float(measurements.agreement[3]) < 0
    others = [row for row in range(8) if row != 3]
    units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    mean = units[others].mean(0)
    assert float(measurements.agreement[3]) == pytest.approx(units[3] @ mean / np.linalg.norm(mean))


def test_left_out_clients_are_measured_but_have_no_part_in_the_step():
    updates = rows(6, 8) + 1.0
    updates[2] *= -50
    step = measured(aggregator("craft").guarded(guard("default")), updates)
    found = {row["client"]: row for row in step.certificate.clients.rows()}
    assert list(found) == list(range(8))
    assert "times as long as usual" in found[2]["left_out"]
    assert found[2]["weight"] == 0
    assert np.isnan(found[2]["influence"])
    assert found[2]["norm"] == pytest.approx(np.linalg.norm(updates[2]))
    assert sum(row["weight"] for row in found.values()) == pytest.approx(1)


def test_without_gram_matrices_nothing_is_measured_unless_asked():
    step = aggregator("average").aggregate(rows(), layers=LAYERS)
    assert step.certificate.clients is None
    assert step.certificate.client_rows(everybody=True) == []
    unknown = measured(aggregator("fedlf"), rows(), losses=np.ones(6))
    assert bool(unknown.certificate.clients.influence.isnan().all())
    assert replace(unknown.certificate, products=None).clients is None
