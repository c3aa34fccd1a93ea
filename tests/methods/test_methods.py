"""Every method builds, trains for real, and mixes with every other."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedcraft
from fedcraft.aggregators import RULES
from fedcraft.data import Tensors
from fedcraft.errors import InputError
from fedcraft.local import OBJECTIVES, ClientData, LocalTask, SeedAddress
from fedcraft.methods import Method, Part, markdown_table, method, methods
from fedcraft.models import FlatModel, seeded
from fedcraft.server_optimizers import OPTIMIZERS
from fedcraft.updates import Layout

NAMES = [row.name for row in methods()]
PAPER_BASELINES = [
    "fedavg",
    "fedprox",
    "fednova",
    "fedavgm",
    "fedadagrad",
    "fedadam",
    "fedyogi",
    "afl",
    "qfedavg",
    "fedmgda+",
    "fedfv",
    "fedlf",
    "config",
]


@pytest.fixture(scope="module")
def digits() -> Tensors:
    inputs, labels = load_digits(return_X_y=True)
    order = np.argsort(labels, kind="stable")  # neighbours share labels: clients disagree
    return Tensors(
        torch.tensor(inputs[order] / 16.0, dtype=torch.float32), torch.tensor(labels[order])
    )


class Federation:
    """Three clients with different digits, and rounds of one method on them."""

    def __init__(self, chosen: Method, digits: Tensors) -> None:
        with seeded(3):
            module = nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
        self.model = FlatModel(module)
        self.layout = Layout.from_module(module)
        self.parts = chosen.build()
        self.theta = self.model.vector.clone()
        self.initial = self.theta.clone()
        self.clients = [ClientData(digits, np.arange(s, s + n)) for s, n in self.ranges]
        self.states: list[dict[str, Tensor] | None] = [None] * 3
        self.number = 0

    ranges = ((0, 60), (700, 90), (1500, 35))

    def task(self, client: int) -> LocalTask:
        return LocalTask(
            self.theta,
            self.clients[client],
            lr=0.05,
            address=SeedAddress(1, self.number, client),
            batch_size=20,
            state=self.states[client],
            initial=self.initial,
            report_loss="losses" in self.parts[1].needs,
        )

    def round(self) -> Tensor:
        local, rule, server = self.parts
        updates = torch.empty(3, len(self.theta))
        results = [local.train(self.model, self.task(i), updates[i]) for i in range(3)]
        self.states = [result.state for result in results]
        step = rule.aggregate(
            updates,
            weights=[result.samples for result in results],
            layers=self.layout,
            client_ids=[0, 1, 2],
            losses=[r.loss for r in results] if "losses" in rule.needs else None,
            steps=[result.steps for result in results],
            client_lr=0.05,
        )
        self.theta = self.theta - server.step(step.direction)
        self.number += 1
        return step.direction

    def loss(self) -> float:
        """Mean loss of the clients with the parameters each is evaluated with."""
        local = self.parts[0]
        vectors = [local.personal_vector(self.model, self.task(i)).clone() for i in range(3)]
        pairs = zip(vectors, self.clients, strict=True)
        return float(np.mean([local.loss_at(self.model, v, data) for v, data in pairs]))


@pytest.mark.parametrize("name", NAMES)
def test_every_method_learns_from_real_digits(name: str, digits: Tensors) -> None:
    federation = Federation(method(name), digits)
    before = federation.loss()
    for _ in range(5):
        direction = federation.round()
        assert torch.isfinite(direction).all()
        assert direction.any()
    assert federation.loss() < before


@pytest.mark.parametrize(("local", "rule"), list(product(OBJECTIVES, RULES)))
def test_any_clients_mix_with_any_aggregation(local: str, rule: str, digits: Tensors) -> None:
    federation = Federation(method("fedavg", local=local, aggregator=rule), digits)
    for _ in range(2):
        assert torch.isfinite(federation.round()).all()
    assert torch.isfinite(federation.theta).all()
    assert not torch.equal(federation.theta, federation.initial)


@pytest.mark.parametrize(("rule", "server"), list(product(RULES, OPTIMIZERS)))
def test_any_direction_goes_through_any_server(rule: str, server: str, digits: Tensors) -> None:
    chosen = method("fedavg", aggregator=rule, server=server, server_lr=0.01)
    federation = Federation(chosen, digits)
    for _ in range(2):
        federation.round()
    assert torch.isfinite(federation.theta).all()
    assert not torch.equal(federation.theta, federation.initial)


def test_overrides_change_parameters_and_exchange_parts() -> None:
    chosen = method(
        "fedprox",
        local={"mu": 0.1},
        aggregator={"name": "craft", "clip": 2.0},
        server={"name": "adam", "tau": 1e-4},
        client_lr=0.2,
        server_lr=0.3,
    )
    local, rule, server = chosen.build()
    assert (local.mu, rule.clip, server.tau, server.lr) == (0.1, 2.0, 1e-4, 0.3)
    assert (chosen.client_lr, chosen.name) == (0.2, "fedprox")
    assert method("fedprox").local == Part("proximal", {"mu": 0.01})


def test_an_exchanged_part_forgets_the_parameters_of_the_old_one() -> None:
    assert method("fedprox", local="plain").local == Part("plain")
    assert method("fedadam", server={"name": "momentum"}).server == Part("momentum")
    assert method("fedadam", server={"tau": 0.1}).server.params["beta1"] == 0.9


def test_ditto_goes_around_any_clients() -> None:
    chosen = method("ditto+craft", local={"lam": 0.5, "inner": {"name": "proximal", "mu": 0.2}})
    local, rule, _ = chosen.build()
    assert (local.lam, local.inner.mu, type(rule).__name__) == (0.5, 0.2, "Craft")


def test_builds_are_fresh_each_time() -> None:
    first, second = method("craft").build(), method("craft").build(server_lr=0.7)
    assert all(a is not b for a, b in zip(first, second, strict=True))
    assert (first[2].lr, second[2].lr) == (0.1, 0.7)


def test_defaults_are_those_of_the_comparison() -> None:
    assert method("fedprox").build()[0].mu == 0.01
    momentum = method("fedavgm").build()[2]
    assert (momentum.beta, momentum.dampened, momentum.nesterov) == (0.9, False, False)
    adam = method("fedadam").build()[2]
    assert (adam.beta1, adam.beta2, adam.tau, adam.bias_correction) == (0.9, 0.99, 1e-3, "none")
    yogi, adagrad = method("fedyogi").build()[2], method("fedadagrad").build()[2]
    assert (yogi.beta1, yogi.beta2, yogi.tau, adagrad.beta1, adagrad.tau) == (
        *(0.9, 0.99, 1e-3),
        *(0.0, 1e-3),
    )
    rules = {name: method(name).build()[1] for name in NAMES}
    assert rules["afl"].gamma == 0.1
    assert rules["qfedavg"].q == 0.1
    assert rules["fedmgda+"].epsilon == 0.1
    assert (rules["fedfv"].alpha, rules["fedfv"].tau) == (0.1, 1)
    assert (rules["fedlf"].history, rules["fedlf-history"].history) == (False, True)
    assert rules["config"].meaning == "layerwise"
    assert (rules["craft-fair"].constraint, rules["craft-fair"].target) == ("at_least", "uniform")
    assert method("ditto").build()[0].lam == 1.0


def test_the_paper_has_its_thirteen_baselines_here() -> None:
    shown = {row.name for row in methods() if row.in_paper}
    craft = {"craft", "ditto", "ditto+craft", "fedlf-history"}
    assert shown == set(PAPER_BASELINES) | craft


def test_flags_follow_the_parts() -> None:
    personal = {row.name for row in methods() if row.personal}
    families = ("ditto", "perfedavg", "fedrep", "fedbn", "apfl", "pfedme")
    assert personal == {name for name in NAMES if name.startswith(families)}
    averaged = {row.name for row in methods() if hasattr(row.build()[1], "evaluate_average")}
    assert averaged == {"afl"}
    assert method("afl").build()[1].evaluate_average
    assert method("qfedavg").needs == {"losses", "client_lr"}
    assert method("fednova").needs == {"steps"}


@pytest.mark.parametrize(
    ("alias", "name"), [("fedmgda", "fedmgda+"), ("FedAvg", "fedavg"), ("q-FedAvg", "qfedavg")]
)
def test_other_spellings_are_understood(alias: str, name: str) -> None:
    assert method(alias).name == name


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("fedavgg", {}, "unknown name 'fedavgg'. Did you mean 'fedavg'"),
        ("zzz", {}, "unknown name 'zzz'. Known: fedavg, "),
        ("fedprox", {"local": {"mu": -1.0}}, "mu: expected"),
        ("fedprox", {"local": {"mu": "1"}}, "mu: expected a number, found '1'"),
        ("fedprox", {"local": {"nu": 1.0}}, "'proximal'.*nu"),
        ("fedavg", {"aggregator": "kraft"}, "Did you mean 'craft'"),
        ("fedavg", {"server": {"name": "adamm"}}, "Did you mean 'adam'"),
        ("fedavg", {"server": {"lr": 0.5}}, "the server's rate is server_lr"),
        ("fedavg", {"server_lr": -1.0}, "lr: expected"),
        ("fedavg", {"client_lr": -1.0}, "client_lr: expected"),
        ("fedavg", {"client_lr": "0.1"}, "client_lr: expected a number, found '0.1'"),
        ("fedavg", {"server_lr": "0.1"}, "lr: expected a number, found '0.1'"),
        ("craft", {"aggregator": {"tau": "1e-6"}}, "tau: expected a number, found '1e-6'"),
        ("craft", {"aggregator": {"clip": "2"}}, "clip: expected a positive number, 'auto'"),
        ("craft", {"aggregator": {"eps": None}}, "eps: expected a number, found None"),
        ("craft", {"aggregator": {"epsilon": 1.0}}, "'craft'.*epsilon"),
        ("fedadam", {"server": {"beta1": "0.9"}}, "beta1: expected a number, found '0.9'"),
    ],
)
def test_mistakes_are_named_at_once(name: str, overrides: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        method(name, **overrides)


def test_methods_are_values() -> None:
    chosen = method("ditto+craft", local={"lam": 0.3})
    assert pickle.loads(pickle.dumps(chosen)) == chosen
    assert chosen == method("ditto+craft", local={"lam": 0.3})
    assert chosen != method("ditto+craft")


def test_the_table_cannot_be_changed_by_its_users() -> None:
    with pytest.raises(TypeError):
        method("fedadam").server.params["beta1"] = 0.0  # type: ignore[index]
    given = {"beta1": 0.5}
    part = Part("adam", given)
    given["beta1"] = 0.0
    assert part.params == {"beta1": 0.5}
    assert method("fedadam").server.params == method("fedyogi").server.params


def test_parts_are_values_that_travel() -> None:
    nested = {"lam": 0.5, "inner": {"name": "proximal", "mu": 0.2}}
    part = method("ditto", local=nested).local
    for copied in (pickle.loads(pickle.dumps(part)), copy.deepcopy(part), replace(part)):
        assert copied == part
        assert hash(copied) == hash(part)
        with pytest.raises(TypeError):
            copied.params["lam"] = 0.0
    assert json.loads(json.dumps(asdict(part)["params"])) == nested
    assert part != Part("ditto", {"lam": 0.5})
    assert len({method("craft"), method("craft"), method("config")}) == 2


def test_the_table_lists_every_method_once() -> None:
    lines = markdown_table().strip().splitlines()
    assert len(lines) == 2 + len(NAMES)
    assert len(set(NAMES)) == len(NAMES)
    for line, row in zip(lines[2:], methods(), strict=True):
        assert line.startswith(f"| `{row.name}` |")
        assert row.summary in line
        assert len(line.split(" | ")) == 7
    assert "| `fedprox` | `proximal(mu=0.01)` | `average` | `sgd` | yes |" in lines[3]


def test_the_package_offers_both_functions() -> None:
    assert fedcraft.method("craft") == method("craft")
    assert fedcraft.methods() == methods()
