"""craft-auto in place of FedAvg, with FedAvg's own rates and nothing else changed.

``python -m benchmarks.out_of_the_box`` measures the same on more data, seeds and rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_craft_auto_is_not_below_fedavg_at_its_own_rates(
    partition: PartitionName, tmp_path: Path
) -> None:
    fedavg, auto = (scores(name, partition, tmp_path) for name in ("fedavg", "craft-auto"))
    assert auto["mean"] >= fedavg["mean"] - 0.01
    if partition == "dirichlet":  # clients disagree: clearly above, above all for the worst tenth
        assert auto["mean"] >= fedavg["mean"] + 0.05
        assert auto["worst10"] >= fedavg["worst10"] + 0.1
