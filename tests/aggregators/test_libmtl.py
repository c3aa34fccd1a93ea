"""The conflict-aware rules reproduce LibMTL, whose sums over tasks are m times our averages."""

from __future__ import annotations

import pytest
import torch

from fedcraft import aggregator

CASES = [
    ("cagrad", {"c": 0.2}, "cagrad_c0.2", 1e-3),  # scipy's solver stops there
    ("cagrad", {"c": 0.5}, "cagrad_c0.5", 1e-3),
    ("imtl_g", {}, "imtl_g", 1e-9),
    ("fairgrad", {"alpha": 2.0}, "fairgrad_alpha2", 1e-4),
    ("fairgrad", {"alpha": 1.0}, "fairgrad_alpha1", 1e-4),
    ("nash_mtl", {}, "nash_mtl", 1e-5),
]


@pytest.mark.golden("libmtl-*.npz")
@pytest.mark.parametrize(("rule", "params", "name", "tolerance"), CASES)
def test_steps_are_those_of_libmtl(golden_case, relative_error, rule, params, name, tolerance):
    for record in golden_case.rounds:
        found = aggregator(rule, by_layer=False, **params).aggregate(record["updates"]).direction
        assert relative_error(found, record[name]) < tolerance


@pytest.mark.golden("libmtl-*.npz")
def test_aligned_mtl_is_that_of_libmtl(golden_case, relative_error):
    for record in golden_case.rounds:
        rows = record["updates"]
        found = aggregator("aligned_mtl", by_layer=False).aggregate(rows).direction
        assert relative_error(len(rows) * found, record["aligned_mtl"]) < 1e-9


@pytest.mark.golden("libmtl-*.npz")
@pytest.mark.parametrize(("rule", "params"), [("pcgrad", {}), ("gradvac", {"beta": 0.3})])
def test_rules_with_an_order_are_those_of_libmtl_in_its_order(
    golden_case, relative_error, monkeypatch, rule, params
):
    kept = aggregator(rule, by_layer=False, **params)
    for record in golden_case.rounds:
        rows, orders = record["updates"], torch.from_numpy(record[f"{rule}_orders"])
        monkeypatch.setattr(f"fedcraft.aggregators.{rule}.visits", lambda *_, orders=orders: orders)
        found = kept.aggregate(rows).direction
        assert relative_error(len(rows) * found, record[rule]) < 1e-6  # it adds 1e-8 to divisors
    if rule == "gradvac":
        assert relative_error(kept.memory["targets"][0], record["gradvac_targets"]) < 1e-6
