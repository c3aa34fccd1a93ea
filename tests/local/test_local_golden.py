"""Local objectives against the golden files, over all their rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedcraft.aggregators import aggregator
from fedcraft.data import Tensors
from fedcraft.local import (
    ClientData,
    LocalObjective,
    LocalResult,
    LocalTask,
    SeedAddress,
    local_objective,
)
from fedcraft.models import FlatModel

ADDRESS = SeedAddress(0, 0, 0)


@dataclass(frozen=True, eq=False)
class Prescribed(ClientData):
    """Data whose epochs come in a given order, again from the first after the last."""

    orders: Iterator[np.ndarray] = field(default_factory=lambda: iter(()))

    def epoch(self, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
        return self.tensors.gather(next(self.orders))


def in_order(inputs: Any, labels: Any, *, parts: int = 1) -> Prescribed:
    """Serve the samples in their order, cut into ``parts`` equal epochs."""
    tensors = Tensors(torch.as_tensor(inputs), torch.as_tensor(labels))
    orders = np.split(np.arange(len(labels)), parts)
    return Prescribed(tensors, orders[0], cycle(orders))


class Vector(nn.Module):
    """A model that is nothing but its parameter vector: ``inputs`` has no influence."""

    def __init__(self, size: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.w


class Dot(Vector):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.w


def least_squares(outputs: Tensor, labels: Tensor) -> Tensor:
    return 0.5 * (outputs - labels).square().mean()


def quadratic(w: Tensor, labels: Tensor) -> Tensor:
    """Gradient a (w - c); a label is the pair (a, c)."""
    scale, center = labels[0]
    return 0.5 * (scale * (w - center).square()).sum()


def given_gradient(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.sum()


def run(
    objective: LocalObjective, module: nn.Module, theta: Any, data: ClientData, **task: Any
) -> tuple[Tensor, LocalResult]:
    broadcast = torch.as_tensor(theta)
    row = torch.empty_like(broadcast)
    asked = LocalTask(broadcast, data, address=ADDRESS, **task)
    return row, objective.train(FlatModel(module), asked, row)


@pytest.mark.golden("fedprox_client_flgo-a_*.npz")
def test_fedprox_clients_step_as_in_flgo(golden_case, relative_error) -> None:
    objective = local_objective("proximal", mu=golden_case["mu"], loss=least_squares)
    for t in golden_case.rounds:
        batches, size, _ = t["X"].shape
        data = in_order(t["X"].reshape(batches * size, -1), t["Y"].reshape(-1))
        row, _ = run(
            objective, Dot(24), t["theta_before"], data, lr=golden_case["eta_l"], batch_size=size
        )
        assert relative_error(row, t["update"]) < 1e-11


@pytest.mark.golden("fednova_authors-a_*.npz", "fedprox_fednovarepo-a_mu01.npz")
def test_the_solvers_of_fednova_step_and_count_as_the_authors(golden_case, relative_error) -> None:
    if golden_case["mu"]:
        objective = local_objective("proximal", mu=golden_case["mu"], loss=given_gradient)
    else:
        momentum = golden_case["momentum"]
        objective = local_objective("plain", momentum=momentum, loss=given_gradient)
    counts = golden_case.name.startswith("fednova")  # the FedProx class counts nothing
    for t in golden_case.rounds:
        for client, steps in enumerate(t["taus"]):
            gradients = t["step_grads"][client][:steps]
            data = in_order(gradients, np.zeros(steps))
            lr = golden_case["eta_l"]
            row, result = run(objective, Dot(24), t["theta_before"], data, lr=lr, batch_size=1)
            assert relative_error(row, t["updates"][client]) < 1e-11
            assert not counts or abs(result.steps - t["a_norm"][client]) < 1e-12


def ditto_rounds(case: Any, objective: LocalObjective) -> Any:
    """Yield (golden round, its ids, rows of g_i), carrying the personal models as state."""
    states: list[dict[str, Tensor] | None] = [None] * len(case["quad_center"])
    for t in case.rounds:
        rows = []
        for client in t["ids"]:
            pair = np.stack([case["quad_scale"][client], case["quad_center"][client]])
            steps = case["local_steps"]
            data = in_order(np.zeros((steps, 1)), np.stack([pair] * steps))
            asked = {"lr": case["eta_l"], "batch_size": 1, "state": states[client]}
            asked["initial"] = torch.as_tensor(case["theta0"])
            row, result = run(objective, Vector(24), t["theta_before"], data, **asked)
            states[client] = result.state
            rows.append(row)
        start = torch.as_tensor(case["theta0"])
        personal = [start if state is None else state["personal"] for state in states]
        yield t, torch.stack(rows), torch.stack(personal)


@pytest.mark.golden("ditto_authors-a_*.npz")
def test_ditto_follows_its_authors(golden_case, relative_error) -> None:
    objective = local_objective("ditto", lam=golden_case["lam"], loss=quadratic)
    average = aggregator("average", weighting="uniform")
    for t, rows, personal in ditto_rounds(golden_case, objective):
        assert relative_error(rows, t["updates"]) < 1e-11
        assert relative_error(personal, t["personal"]) < 1e-11
        assert relative_error(average.aggregate(rows).direction, t["agg"]) < 1e-11


def test_ditto_with_craft_follows_the_released_operator(golden, relative_error) -> None:
    case = golden("ditto_craft-a.npz")
    objective = local_objective("ditto", lam=case["lam"], loss=quadratic)
    craft = aggregator("craft", released_code=True)
    for t, rows, personal in ditto_rounds(case, objective):
        weights = case["n_all"][t["ids"]]
        step = craft.aggregate(rows, weights=weights, layers=case["layer_sizes"])
        assert relative_error(rows, t["updates"]) < 1e-11
        assert relative_error(personal, t["personal"]) < 1e-11
        assert relative_error(step.direction, t["agg"]) < 1e-10
        moved = t["theta_before"] - case["eta_g"] * step.direction.numpy()
        assert relative_error(moved, t["theta"]) < 1e-10


def test_ditto_clients_step_as_in_flgo(golden, relative_error) -> None:
    case = golden("ditto_client_flgo-a_mu1.npz")
    objective = local_objective("ditto", lam=case["mu"], loss=least_squares)
    for t in case.rounds:
        batches, size, _ = t["X"].shape
        data = in_order(t["X"].reshape(batches * size, -1), t["Y"].reshape(-1))
        kept = {"personal": torch.as_tensor(t["personal_before"])}
        asked = {"lr": case["eta_l"], "batch_size": size, "state": kept}
        row, result = run(objective, Dot(24), t["theta_before"], data, **asked)
        assert result.state is not None
        assert relative_error(row, t["update"]) < 1e-11
        assert relative_error(result.state["personal"], t["personal_after"]) < 1e-11


def test_first_order_perfedavg_steps_as_in_pfedme(golden, relative_error) -> None:
    case = golden("perfedavg_fo-a.npz")
    rates = {"alpha": case["alpha"], "beta": case["beta"]}
    objective = local_objective("perfedavg", loss=least_squares, **rates)
    for t in case.rounds:
        rows = []
        for inputs, labels in zip(t["X"], t["Y"], strict=True):
            data = in_order(inputs.reshape(24, 16), labels.reshape(24), parts=2)
            row, result = run(objective, Dot(16), t["theta_before"], data, lr=0.1, batch_size=4)
            assert result.steps == case["local_steps"]
            rows.append(row)
        for row, local in zip(rows, t["theta_local"], strict=True):
            assert relative_error(t["theta_before"] - row.numpy(), local) < 1e-11
        average = aggregator("average").aggregate(torch.stack(rows), weights=case["n"])
        assert relative_error(average.direction, t["agg"]) < 1e-11


class TwoLayers(nn.Module):
    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.enc = nn.Linear(inputs, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.relu(self.enc(inputs)))


def test_fedrep_trains_head_and_body_as_its_authors(golden, relative_error) -> None:
    case = golden("fedrep_client-a.npz")
    epochs = {"head_epochs": case["local_ep"] - case["local_rep_ep"], "body_epochs": 1}
    momentum = {"momentum": case["momentum"], "weight_decay": case["weight_decay"]}
    objective = local_objective("fedrep", **epochs, **momentum)
    body = case["din"] * case["h"] + case["h"]
    theta: Tensor = torch.as_tensor(case["theta0"])
    states: list[dict[str, Tensor] | None] = [None] * len(case["X"])
    for t in case.rounds:
        rows = []
        for client, local in enumerate(t["locals"]):
            data = in_order(case["X"][client], case["Y"][client])
            module = TwoLayers(case["din"], case["h"], case["k"])
            asked = {"lr": case["lr"], "batch_size": case["bs"], "state": states[client]}
            row, result = run(objective, module, theta, data, **asked)
            assert result.state is not None
            states[client] = result.state
            own = torch.cat([(theta - row)[:body], result.state["head"]])
            assert relative_error(own, local) < 1e-5
            assert not row[body:].any()
            rows.append(row)
        theta = theta - torch.stack(rows).mean(0)
        assert relative_error(theta[:body], t["global"][:body]) < 1e-5


class Perceptron(nn.Sequential):
    def __init__(self, sizes: Sequence[int]) -> None:
        first, second, third = (nn.Linear(*pair) for pair in pairwise(sizes))
        super().__init__(first, nn.ReLU(), second, nn.ReLU(), third)


def test_plain_sgd_trains_as_the_released_craft_clients(golden, relative_error) -> None:
    case = golden("craft_e2e-a.npz")
    tensors = Tensors(torch.as_tensor(case["X"]), torch.as_tensor(case["Y"]))
    theta = torch.as_tensor(case["theta0"])
    for number, t in enumerate(case.rounds):
        lr = float(case["lr"] * case["lr_decay"] ** max(number - 1, 0))
        assert lr == pytest.approx(t["lr"], rel=1e-12)
        sizes = np.diff(case["train_ptr"])[t["ids"]]
        orders = np.split(t["sample_order"], np.cumsum(sizes)[:-1])
        for order, expected in zip(orders, t["updates"], strict=True):
            data = Prescribed(tensors, order, iter([order]))
            module = Perceptron([6, case["hidden_dim"], case["hidden_dim"], case["n_classes"]])
            asked = {"lr": lr, "batch_size": case["bs"]}
            row, _ = run(local_objective("plain"), module, theta, data, **asked)
            assert relative_error(row, expected) < 1e-5
        theta = torch.as_tensor(t["theta"])
