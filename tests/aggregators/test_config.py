"""ConFIG's three meanings agree with the packages that define them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedcraft
from fedcraft.errors import InputError

GOLDEN = Path(__file__).parent.parent / "golden"
FILES = [
    "config-a_duplicate_rows.npz",
    "config-a_m2.npz",
    "config-a_m4.npz",
    "config-a_zero_row.npz",
]


def rule_for(key):
    by_layer = "layerwise" in key
    plain = "layerwise" if by_layer else "target"
    meaning = plain if "nolen" in key else "original"
    weighting = "ones" if "equal" in key else "data"
    return fedcraft.aggregator("config", meaning=meaning, weighting=weighting, by_layer=by_layer)


@pytest.mark.parametrize("name", FILES)
def test_every_published_variant_is_reproduced(name):
    data = np.load(GOLDEN / name)
    keys = [k for k in data.files if k.startswith(("config_", "torchjd_config"))]
    assert keys
    for key in keys:
        found = rule_for(key).aggregate(
            data["updates"], weights=data["rho"], layers=list(data["layer_sizes"])
        )
        error = np.abs(found.direction - data[key]).max() / np.abs(data[key]).max()
        assert error <= 1e-11, key


def test_the_original_agrees_with_torchjd_and_conflictfree_in_this_run():
    torchjd = pytest.importorskip("torchjd.aggregation")
    conflictfree = pytest.importorskip("conflictfree.grad_operator")
    updates = torch.randn(5, 40, generator=torch.Generator().manual_seed(5))
    found = fedcraft.aggregator("config", meaning="original").aggregate(updates).direction
    torch.testing.assert_close(found, torchjd.ConFIG()(updates), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        found, conflictfree.ConFIG_update(list(updates)), atol=1e-5, rtol=1e-4
    )


def test_the_target_meaning_meets_its_targets_on_the_whole_vector():
    rng = np.random.default_rng(0)
    updates, rho = rng.normal(size=(4, 30)), np.array([0.1, 0.2, 0.3, 0.4])
    rule = fedcraft.aggregator("config", meaning="target")
    step = rule.aggregate(updates, weights=rho, layers=[10, 20])
    np.testing.assert_allclose(step.certificate.whole.alignment, rho, atol=1e-12)


@pytest.mark.parametrize("meaning", ["target", "layerwise", "original"])
@pytest.mark.parametrize("sizes", [[3], [2, 1]])
def test_the_certificate_confesses_targets_that_are_missed(meaning, sizes):
    updates = np.random.default_rng(0).normal(size=(8, 3))
    step = fedcraft.aggregator("config", meaning=meaning).aggregate(updates, layers=sizes)
    found, layer = step.certificate, slice(None) if meaning != "layerwise" else slice(0, sizes[0])
    block = updates[:, layer]
    aligned = block @ step.direction[layer] / np.linalg.norm(block, axis=1)
    targets = np.full(8, 1 / 8)
    if meaning == "original":  # proportional to w, with the length of g
        units = block / np.linalg.norm(block, axis=1, keepdims=True)
        shortest = np.linalg.pinv(units) @ np.ones(8)
        targets = np.full(8, np.linalg.norm(step.direction) / np.linalg.norm(shortest))
    missed = np.linalg.norm(aligned - targets)
    assert missed > 0.1
    whole = found.rows()[-1]
    if meaning == "layerwise":
        assert float(found.layers.residual[0]) == pytest.approx(missed)
        assert found.layers.rank.tolist() == sizes
    else:
        assert found.whole.residual == whole["residual"] == pytest.approx(missed)
        assert found.whole.rank == whole["rank"] == 3
        assert whole["correction_norm"] == pytest.approx(np.linalg.norm(step.direction))


def test_a_rule_for_the_whole_vector_claims_nothing_about_its_layers():
    updates = np.random.default_rng(1).normal(size=(4, 30))
    rule = fedcraft.aggregator("config", meaning="target")
    found = rule.aggregate(updates, layers=[10, 20]).certificate
    assert torch.isnan(found.layers.residual).all()
    assert torch.isnan(found.layers.correction_norm).all()
    assert found.layers.rank.tolist() == [0, 0]
    assert (found.whole.residual < 1e-12, found.whole.rank) == (True, 4)


def test_an_antipodal_pair_with_equal_weights_does_not_move():
    updates = np.array([[1.0, 2.0], [-1.0, -2.0]])
    for meaning in ("original", "target", "layerwise"):
        step = fedcraft.aggregator("config", meaning=meaning).aggregate(updates)
        np.testing.assert_allclose(step.direction, 0.0, atol=1e-12)


def test_an_unknown_meaning_is_named():
    with pytest.raises(InputError, match="meaning"):
        fedcraft.aggregator("config", meaning="fourth")


@pytest.mark.parametrize("delta", [1e-4, 3e-5])
def test_the_original_length_is_that_of_the_vector_where_clients_are_nearly_copies(delta):
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 20, generator=rng, dtype=torch.float64)
    rows[1] = rows[0] + delta * torch.randn(20, generator=rng, dtype=torch.float64)
    updates = rows.float()
    step = fedcraft.aggregator("config", meaning="original").aggregate(updates)
    units = torch.nn.functional.normalize(updates.double(), dim=1)
    along = torch.linalg.pinv(units) @ torch.ones(4, dtype=torch.float64)
    expected = (updates.double() @ along).sum() * along / along.square().sum()
    found = step.direction.double()
    onto = (updates.double() @ found).sum() / found.norm()
    assert float(found.norm()) == pytest.approx(float(onto), rel=1e-6)
    # The formula itself multiplies the rounding of float32 by the condition of the rows.
    rounding = torch.finfo(torch.float32).eps / 2 * torch.linalg.cond(units)
    assert float((found - expected).norm() / expected.norm()) < float(rounding)
