"""What each local objective computes, and which ones are personal."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcraft.errors import InputError
from fedcraft.local import (
    OBJECTIVES,
    ClientData,
    SeedAddress,
    local_objective,
)
from fedcraft.models import FlatModel

Lab = Any  # the fixture of conftest.py
PERSONAL = {"ditto", "perfedavg", "fedrep", "fedbn", "apfl", "pfedme"}
every_objective = pytest.mark.parametrize("name", list(OBJECTIVES))


def test_plain_sgd_is_torch_sgd(lab: Lab) -> None:
    options = {"momentum": 0.9, "weight_decay": 0.01}
    asked = lab.task(lab.network(), lab.client(), epochs=3)
    row, _ = lab.train("plain", lab.network(), asked, **options)
    module = lab.network()
    optimizer = torch.optim.SGD(module.parameters(), lr=asked.lr, **options)
    for inputs, labels in asked.batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()
    torch.testing.assert_close(asked.theta - row, FlatModel(module).vector, rtol=1e-5, atol=1e-6)


def test_momentum_weights_have_fednovas_closed_form(lab: Lab) -> None:
    beta, steps = 0.9, 5
    _, result = lab.train(
        "plain", lab.network(), lab.task(lab.network(), lab.client(33)), momentum=beta
    )
    closed = (steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta)
    assert result.steps == pytest.approx(closed, rel=1e-12)


def test_proximal_weights_have_fednovas_closed_form(lab: Lab) -> None:
    _, result = lab.train(
        "proximal", lab.network(), lab.task(lab.network(), lab.client(33)), mu=0.5
    )
    pull = 0.1 * 0.5
    assert result.steps == pytest.approx((1 - (1 - pull) ** 5) / pull, rel=1e-12)


def test_fedprox_without_pull_is_plain_and_with_it_stays_closer(lab: Lab) -> None:
    asked = lab.task(lab.network(), lab.client(), epochs=4)
    plain, _ = lab.train("plain", lab.network(), asked)
    assert torch.equal(lab.train("proximal", lab.network(), asked, mu=0.0)[0], plain)
    assert lab.train("proximal", lab.network(), asked, mu=2.0)[0].norm() < 0.9 * plain.norm()


@pytest.mark.parametrize("inner", ["plain", {"name": "proximal", "mu": 1.0}, "perfedavg", "fedrep"])
def test_ditto_uploads_what_its_inner_objective_would(inner: Any, lab: Lab) -> None:
    module = lab.network(dropout=0.5)
    params = {"name": inner} if isinstance(inner, str) else dict(inner)
    alone = local_objective(**params)
    asked = lab.task(module, lab.client())
    state_alone = state = None
    for _ in range(2):
        row = torch.empty_like(asked.theta)
        expected = alone.train(FlatModel(module), replace(asked, state=state_alone), row)
        around, result = lab.train("ditto", module, replace(asked, state=state), inner=inner)
        assert torch.equal(around, row)
        assert (result.steps, result.train_loss) == (expected.steps, expected.train_loss)
        state_alone, state = expected.state, result.state


def test_dittos_personal_model_is_drawn_to_the_broadcast_one(lab: Lab) -> None:
    asked = lab.task(lab.network(), lab.client(), epochs=3, initial=torch.zeros(1210))
    distance = {}
    for lam in (0.0, 5.0):
        _, result = lab.train("ditto", lab.network(), asked, lam=lam)
        distance[lam] = (result.state["personal"] - asked.theta).norm()
    assert distance[5.0] < 0.5 * distance[0.0]


def test_dittos_personal_model_has_a_separate_rate(lab: Lab) -> None:
    asked = lab.task(lab.network(), lab.client())
    row, still = lab.train("ditto", lab.network(), asked, personal_lr=0.0)
    _, moving = lab.train("ditto", lab.network(), asked)
    assert row.any()
    assert torch.equal(still.state["personal"], asked.theta)
    assert not torch.equal(moving.state["personal"], asked.theta)


def test_clients_that_never_took_part_are_judged_by_the_initial_model(lab: Lab) -> None:
    model = FlatModel(lab.network())
    initial = torch.randn(len(model), generator=torch.Generator().manual_seed(1))
    asked = lab.task(lab.network(), lab.client(), initial=initial)
    assert torch.equal(local_objective("ditto").personal_vector(model, asked), initial)
    vector = local_objective("fedrep").personal_vector(model, asked)
    assert torch.equal(vector[1040:], initial[1040:])
    assert torch.equal(vector[:1040], asked.theta[:1040])


@every_objective
def test_the_personal_vector_is_that_of_the_state(name: str, lab: Lab) -> None:
    network = partial(lab.network, norm=name == "fedbn")
    objective, model = local_objective(name), FlatModel(network())
    assert objective.personal == (name in PERSONAL)
    asked = lab.task(network(), lab.client(32))
    _, result = lab.train(name, network(), asked)
    vector = objective.personal_vector(model, replace(asked, state=result.state))
    assert torch.equal(vector, asked.theta) == (name not in PERSONAL)
    again = objective.personal_vector(model, replace(asked, state=result.state))
    assert torch.equal(vector, again)


@pytest.mark.parametrize("name", sorted(PERSONAL))
def test_personal_models_fit_their_client_better(name: str, lab: Lab) -> None:
    data = lab.client(60)
    network = partial(lab.network, norm=name == "fedbn")
    objective, model = local_objective(name), FlatModel(network())
    asked, state = lab.task(network(), data, epochs=2), None
    for number in range(3):
        at = replace(asked, state=state, address=SeedAddress(7, number, 0))
        state = lab.train(name, network(), at)[1].state
    vector = objective.personal_vector(model, replace(asked, state=state))
    shared = objective.loss_at(model, asked.theta, data)
    assert objective.loss_at(model, vector, data) < shared


def test_perfedavg_evaluates_after_one_step_on_the_whole_training_part(lab: Lab) -> None:
    data, model = lab.client(1200), FlatModel(lab.network())
    asked = lab.task(lab.network(), data)
    vector = local_objective("perfedavg", alpha=0.3).personal_vector(model, asked)
    module = lab.network()
    inputs, labels = data.whole()
    nn.functional.cross_entropy(module(inputs), labels).backward()
    slope = torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()])
    torch.testing.assert_close(vector, asked.theta - 0.3 * slope, rtol=1e-5, atol=1e-6)


def test_hf_perfedavg_sees_one_dropout_mask_on_both_sides(lab: Lab) -> None:
    """The curvature is a correction of order alpha, not the noise of two masks over delta."""
    rows = {}
    for variant in ("first_order", "hf"):
        module = lab.network(dropout=0.5)
        asked = lab.task(module, lab.client(), batch_size=33)  # one step, of the same batches
        rows[variant], _ = lab.train("perfedavg", module, asked, variant=variant, alpha=0.01)
    assert (rows["hf"] - rows["first_order"]).norm() < 0.1 * rows["first_order"].norm()


def test_hf_perfedavg_adds_the_curvature(lab: Lab) -> None:
    """On a quadratic with Hessian H the HF step is w - beta (I - alpha H) H (w' - c), exactly."""

    class Point(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.w

    hessian = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    data = ClientData.of(torch.zeros(1, 1), torch.zeros(1))
    asked = lab.task(Point(), data, lr=0.2)
    row, _ = lab.train(
        "perfedavg",
        Point(),
        asked,
        variant="hf",
        alpha=0.1,
        loss=lambda w, _: 0.5 * w @ hessian @ w,
    )
    identity = torch.eye(2, dtype=torch.float64)
    inner = (identity - 0.1 * hessian) @ asked.theta
    expected = 0.2 * (identity - 0.1 * hessian) @ hessian @ inner
    torch.testing.assert_close(row, expected, rtol=1e-9, atol=1e-12)


def test_fedrep_uploads_nothing_of_the_head(lab: Lab) -> None:
    row, result = lab.train("fedrep", lab.network(), lab.task(lab.network(), lab.client()))
    assert row[:1040].any()
    assert not row[1040:].any()
    assert result.state["head"].shape == (170,)


def test_fedrep_takes_any_head(lab: Lab) -> None:
    row, result = lab.train(
        "fedrep", lab.network(), lab.task(lab.network(), lab.client()), head=["0.bias", "3"]
    )
    assert result.state["head"].shape == (186,)
    assert row[:1024].any()
    assert not row[1024:].any()


def test_fedreps_head_may_be_a_single_name(lab: Lab) -> None:
    network = lab.network()
    _, result = lab.train("fedrep", network, lab.task(network, lab.client()), head="0.bias")
    assert result.state["head"].shape == (16,)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("nowhere", r"modules or parameters of the model, found \['nowhere'\].*\['0', '3'\]"),
        (["3", "nowhere"], r"found \['nowhere'\]"),
        ([], r"found \[\]"),
        (["0", "3"], "leaves a body to share, found the whole model"),
    ],
)
def test_fedrep_refuses_a_head_that_is_nothing_or_all(head: Any, message: str, lab: Lab) -> None:
    with pytest.raises(InputError, match=message):
        local_objective("fedrep", head=head).check(lab.network())
    with pytest.raises(InputError, match=message):
        local_objective("ditto", inner={"name": "fedrep", "head": head}).check(lab.network())


def test_fedrep_refuses_a_model_of_one_layer() -> None:
    for module in (torch.nn.Linear(3, 2), torch.nn.Sequential(torch.nn.Linear(3, 2))):
        with pytest.raises(InputError, match="found the whole model"):
            local_objective("fedrep").check(module)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("plain", {"momentum": 1.0}, "momentum: expected"),
        ("plain", {"weight_decay": -1.0}, "weight_decay: expected"),
        ("proximal", {"mu": -0.1}, "mu: expected"),
        ("proximal", {"nu": 0.1}, "'proximal'.*nu"),
        ("ditto", {"lam": float("nan")}, "lam: expected"),
        ("ditto", {"inner": "plane"}, "Did you mean 'plain'"),
        ("perfedavg", {"variant": "second"}, "variant: expected"),
        ("perfedavg", {"delta": 0.0}, "delta: expected"),
        ("fedrep", {"head_epochs": -1}, "head_epochs: expected"),
        ("fedrep", {"head": 5}, "head: expected a name.*found 5"),
        ("fedrep", {"head": [3]}, r"head: expected a name.*found \[3\]"),
    ],
)
def test_an_impossible_objective_is_refused(name: str, params: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        local_objective(name, **params)


def test_a_custom_objective_is_found_by_its_import_path() -> None:
    assert type(local_objective("fedcraft.local.sgd:PlainSGD")) is type(local_objective("plain"))
