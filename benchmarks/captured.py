"""Updates of real clients, made on the spot: a few rounds of CRAFT, the last of which is kept."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from torch import Tensor

from benchmarks.simulators.data import federation_of
from fedcraft.aggregators.base import Outcome
from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.craft import Craft
from fedcraft.data import Federation, federate, load
from fedcraft.engine import Settings, run
from fedcraft.methods import method
from fedcraft.models import build

__all__ = ["Round", "capture", "workloads"]

_SEED = 77


class Round(NamedTuple):
    """One round's updates (m, d), CRAFT's last step, the layers' sizes and the clients' weights."""

    updates: Tensor
    previous: Tensor
    sizes: list[int]
    weights: Tensor


class _Capturing(Craft):
    """CRAFT, which also keeps what it last saw."""

    kept: Round | None = None

    def direction(self, cohort: Cohort) -> Outcome:
        previous = self.memory.get("reference")
        if isinstance(previous, Tensor):
            sizes = list(cohort.layout.sizes)
            _Capturing.kept = Round(cohort.matrix.clone(), previous, sizes, cohort.weights)
        return super().direction(cohort)


def workloads(root: str | None) -> list[tuple[str, int]]:
    """Return the cases that the data at hand allow: (workload, clients)."""
    if root is None:
        return [("digits & MLP", 10), ("digits & MLP", 100)]
    return [
        *(("FEMNIST & MLP", clients) for clients in (10, 100, 1000)),
        *(("CIFAR-10 & ResNet-20", clients) for clients in (10, 100)),
    ]


def capture(workload: str, clients: int, root: str | None) -> Round:
    """Train for some rounds with ``clients`` in each, and return the last one."""
    federation, network, batch, rounds = _problem(workload, root)
    dataset = federation.dataset
    model = build(network, input_shape=dataset.input_shape, classes=dataset.classes, seed=0)
    rule = method("craft").overridden(aggregator=_Capturing)
    settings = Settings(
        rounds=rounds if clients <= 100 else 2,
        clients_per_round=clients,
        client_lr=rule.client_lr,
        server_lr=rule.server_lr,
        batch_size=batch,
        executor="serial",
        evaluate_every=0,
        evaluate_train_loss=False,
    )
    run(rule, federation, model, settings)
    if _Capturing.kept is None:
        raise RuntimeError("the run ended before its second round")
    return _Capturing.kept


def _problem(workload: str, root: str | None) -> tuple[Federation, str, int, int]:
    """Return the federation, the network, the batch size and the rounds."""
    if workload == "digits & MLP":
        digits = load("digits")
        return federate(digits, "dirichlet", clients=100, alpha=0.5, seed=_SEED), "mlp", 10, 5
    if workload == "FEMNIST & MLP":
        return federation_of("femnist", root), "mlp", 50, 4
    images = dataclasses.replace(load("cifar10", root=root), augmentation="none")
    shared = federate(images, "dirichlet", clients=1000, alpha=0.1, min_size=5, seed=_SEED)
    return shared, "resnet20", 20, 2
