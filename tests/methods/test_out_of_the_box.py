"""craft-auto and craft-muon in place of FedAvg, with FedAvg's own rates and nothing else changed.

``python -m benchmarks.out_of_the_box`` measures the same on more data, seeds and rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import fedcraft
from fedcraft.config.schema import PartitionName


def scores(method: str, partition: PartitionName, folder: Path) -> Mapping[str, float]:
    own = fedcraft.method("fedavg")
    return fedcraft.run(
        method=method,
        dataset="digits",
        partition=partition,
        client_lr=own.client_lr,
        server_lr=own.server_lr,
        rounds=30,
        evaluate_every=0,
        executor="serial",
        out=folder / method,
    ).evaluation


@pytest.mark.parametrize("method", ["craft-auto", "craft-muon"])
@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_it_is_not_below_fedavg_at_its_own_rates(
    method: str, partition: PartitionName, tmp_path: Path
) -> None:
    fedavg, ours = (scores(name, partition, tmp_path) for name in ("fedavg", method))
    assert ours["mean"] >= fedavg["mean"] - 0.01
    if partition == "dirichlet":  # clients disagree: clearly above, above all for the worst tenth
        assert ours["mean"] >= fedavg["mean"] + 0.05
        assert ours["worst10"] >= fedavg["worst10"] + 0.1


def test_craft_muon_remembers_on_the_server_only_and_hurts_nobody_in_its_direction() -> None:
    """After any first round the rule answers the same; the server's step still remembers it."""
    _, rule, server = fedcraft.method("craft-muon").build()
    _, fresh_rule, fresh_server = fedcraft.method("craft-muon").build()
    before, updates = torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(0))
    server.step(rule.aggregate(before).direction)
    step, fresh = (each.aggregate(updates) for each in (rule, fresh_rule))
    assert torch.equal(step.direction, fresh.direction)
    assert step.certificate.conflict_free
    assert not torch.equal(server.step(step.direction), fresh_server.step(fresh.direction))
