"""Clients that keep a vector between rounds, and their servers, against the golden files."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedcraft.aggregators import aggregator
from fedcraft.data import Tensors
from fedcraft.local import ClientData, LocalObjective, LocalTask, SeedAddress, local_objective
from fedcraft.models import FlatModel

EXACT = 1e-11


class InOrder(ClientData):
    """Samples that come in their order."""

    def epoch(self, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
        return self.tensors.gather(self.rows)


class Federation:
    """The clients of a golden file: what each keeps, and what it sends in a round."""

    def __init__(self, case: Any, objective: LocalObjective, module: nn.Module) -> None:
        self.case, self.objective, self.module = case, objective, module.to(torch.float64)
        self.states: dict[int, Any] = {}
        self.initial = torch.as_tensor(case["r0_theta_before"])

    def rows(self, record: dict[str, Any], sent: dict[str, Tensor] | None = None) -> Tensor:
        """Train the clients of a round from the model of the file."""
        theta, found = torch.as_tensor(record["theta_before"]), []
        for client, inputs, labels in zip(record["ids"], record["X"], record["Y"], strict=True):
            steps, batch, width = inputs.shape
            pair = inputs.reshape(-1, width), labels.reshape(-1)
            tensors = Tensors(*(torch.as_tensor(array) for array in pair))
            task = LocalTask(
                theta, InOrder(tensors, np.arange(steps * batch)), lr=self.case["eta_l"],
                batch_size=batch, address=SeedAddress(0, 0, 0), state=self.states.get(client),
                initial=self.initial, sent=sent or {},
            )  # fmt: skip
            row = torch.empty_like(theta)
            result = self.objective.train(FlatModel(self.module), task, row)
            self.states[client] = result.state
            found.append(row)
        return torch.stack(found)

    def kept(self, record: dict[str, Any], name: str) -> Tensor:
        return torch.stack([self.states[client][name] for client in record["ids"]])


def two_layers(case: Any) -> nn.Module:
    first = nn.Linear(case["inputs"], case["hidden"])
    return nn.Sequential(first, nn.ReLU(), nn.Linear(case["hidden"], case["classes"]))


def test_scaffold_follows_flgo(golden, relative_error) -> None:
    case = golden("scaffold_flgo-a.npz")
    clients = Federation(case, local_objective("scaffold"), two_layers(case))
    server = aggregator("scaffold", clients=case["n_clients"])
    for t in case.rounds:
        rows = clients.rows(t, dict(server.sent))
        assert relative_error(rows, t["updates"]) < EXACT
        assert relative_error(clients.kept(t, "control"), t["client_controls"]) < EXACT
        steps = [t["X"].shape[1]] * len(rows)
        step = server.aggregate(rows, steps=steps, client_lr=case["eta_l"])
        assert relative_error(t["theta_before"] - step.direction.numpy(), t["theta"]) < EXACT
        assert relative_error(server.sent["control"], t["control"]) < EXACT


def test_feddyn_follows_flgo(golden, relative_error) -> None:
    case = golden("feddyn_flgo-a.npz")
    clients = Federation(case, local_objective("feddyn", alpha=case["alpha"]), two_layers(case))
    server = aggregator("feddyn", clients=case["n_clients"])
    for t in case.rounds:
        rows = clients.rows(t)
        assert relative_error(rows, t["updates"]) < EXACT
        assert relative_error(clients.kept(t, "gradient"), t["gradients"]) < EXACT
        direction = server.aggregate(rows).direction
        assert relative_error(t["theta_before"] - direction.numpy(), t["theta"]) < 1e-10


def test_moon_follows_flgo(golden, relative_error) -> None:
    case = golden("moon_flgo-a.npz")
    params = {"mu": case["mu"], "temperature": case["temperature"]}
    clients = Federation(case, local_objective("moon", **params), two_layers(case))
    for t in case.rounds:
        rows = clients.rows(t)
        assert relative_error(rows, t["updates"]) < EXACT
        assert relative_error(t["theta_before"] - rows.mean(0).numpy(), t["theta"]) < EXACT


def test_pfedme_follows_its_authors(golden, relative_error) -> None:
    case = golden("pfedme_authors-a.npz")
    params = {name: case[name] for name in ("lam", "inner_steps", "personal_lr")}
    clients = Federation(case, local_objective("pfedme", **params), two_layers(case))
    for t in case.rounds:
        assert relative_error(clients.rows(t), t["updates"]) < EXACT
        assert relative_error(clients.kept(t, "personal"), t["personal"]) < EXACT


def test_apfl_follows_its_authors_on_a_linear_model(golden, relative_error) -> None:
    case = golden("apfl_authors-a_linear.npz")
    objective = local_objective("apfl", alpha=case["alpha"])
    clients = Federation(case, objective, nn.Linear(case["inputs"], case["classes"]))
    for t in case.rounds:
        assert relative_error(clients.rows(t), t["updates"]) < EXACT
        assert relative_error(clients.kept(t, "personal"), t["personal"]) < EXACT
