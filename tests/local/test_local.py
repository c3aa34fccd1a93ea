"""What every local objective promises, whatever it computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fedcraft.data import Tensors
from fedcraft.errors import InputError, StateError
from fedcraft.local import (
    OBJECTIVES,
    ClientData,
    LocalResult,
    LocalTask,
    SeedAddress,
    decayed_rate,
    local_objective,
    register,
)
from fedcraft.models import FlatModel

PERSONAL = {"ditto", "perfedavg", "fedrep"}
every_objective = pytest.mark.parametrize("name", list(OBJECTIVES))


def network(*, dropout: float = 0.0, norm: bool = False) -> nn.Module:
    torch_state = torch.get_rng_state()
    torch.manual_seed(5)
    middle = [nn.BatchNorm1d(16)] if norm else []
    module = nn.Sequential(
        nn.Linear(64, 16), *middle, nn.Dropout(dropout), nn.ReLU(), nn.Linear(16, 10)
    )
    torch.set_rng_state(torch_state)
    return module


@pytest.fixture(scope="module")
def digits() -> Tensors:
    inputs, labels = load_digits(return_X_y=True)
    return Tensors(torch.tensor(inputs / 16.0, dtype=torch.float32), torch.tensor(labels))


def client(digits: Tensors, samples: int = 33) -> ClientData:
    return ClientData(digits, np.arange(100, 100 + samples))


def task(module: nn.Module, data: ClientData, **given: Any) -> LocalTask:
    theta = FlatModel(module).vector.clone()
    settings = {"lr": 0.1, "batch_size": 8, "address": SeedAddress(77, 3, 12)} | given
    return LocalTask(theta, data, **settings)


def train(name: str, module: nn.Module, asked: LocalTask, **params: Any) -> tuple[Tensor, Any]:
    row = torch.full_like(asked.theta, torch.nan)
    return row, local_objective(name, **params).train(FlatModel(module), asked, row)


def same(first: LocalResult, second: LocalResult) -> bool:
    plain = replace(first, state=None, buffers=None) == replace(second, state=None, buffers=None)
    states = (first.state or {}, second.state or {})
    keys = states[0].keys() == states[1].keys()
    return plain and keys and all(torch.equal(states[0][k], states[1][k]) for k in states[0])


@every_objective
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_same_task_gives_the_same_bits(name: str, dropout: float, digits: Tensors) -> None:
    asked = task(network(dropout=dropout), client(digits), epochs=2, report_loss=True)
    row, result = train(name, network(dropout=dropout), asked)
    torch.rand(7)
    used = network(dropout=dropout)
    train(name, used, replace(asked, address=SeedAddress(1, 1, 1), lr=0.3))
    used.eval()
    again, repeated = train(name, used, asked)
    assert torch.equal(row, again)
    assert same(result, repeated)
    assert torch.isfinite(row).all()
    assert row.any()


@every_objective
def test_no_global_generator_moves(name: str, digits: Tensors) -> None:
    asked = task(network(dropout=0.5), client(digits))
    module = network(dropout=0.5)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    train(name, module, asked)
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002


@every_objective
@pytest.mark.parametrize("part", ["run_seed", "round", "client"])
def test_every_part_of_the_address_matters(name: str, part: str, digits: Tensors) -> None:
    asked = task(network(), client(digits))
    elsewhere = replace(asked, address=asked.address._replace(**{part: 4}))
    assert not torch.equal(train(name, network(), asked)[0], train(name, network(), elsewhere)[0])


def test_dropout_follows_the_address(digits: Tensors) -> None:
    whole = client(digits, samples=8)  # one batch: a shuffle alone changes rounding, not directions
    asked = task(network(dropout=0.5), whole)
    elsewhere = replace(asked, address=SeedAddress(77, 4, 12))
    first, second = (train("plain", network(dropout=0.5), t)[0] for t in (asked, elsewhere))
    assert torch.cosine_similarity(first, second, dim=0) < 0.99


@every_objective
def test_inputs_are_left_as_they_were(name: str, digits: Tensors) -> None:
    asked = task(network(), client(digits))
    _, result = train(name, network(), asked)
    theta, inputs = asked.theta.clone(), digits.inputs.clone()
    kept = {key: value.clone() for key, value in (result.state or {}).items()}
    train(name, network(), replace(asked, state=result.state))
    assert torch.equal(theta, asked.theta)
    assert torch.equal(inputs, digits.inputs)
    assert all(torch.equal(kept[key], result.state[key]) for key in kept)


@every_objective
def test_buffers_are_reported_and_given_back(name: str, digits: Tensors) -> None:
    module = network(norm=True)
    asked = task(network(norm=True), client(digits, 32))
    broadcast = {key: value + 1 for key, value in FlatModel(module).buffers().items()}
    before = FlatModel(module).buffers()
    _, result = train(name, module, replace(asked, buffers=broadcast))
    after = FlatModel(module).buffers()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert result.buffers is not None
    assert not torch.equal(result.buffers["1.running_mean"], broadcast["1.running_mean"])
    assert result.buffers["1.num_batches_tracked"] > 1
    assert train(name, network(), task(network(), client(digits)))[1].buffers is None


@every_objective
@pytest.mark.parametrize(("samples", "batch_size"), [(1, 8), (5, 50), (9, 8)])
def test_small_clients_train(name: str, samples: int, batch_size: int, digits: Tensors) -> None:
    asked = task(network(), client(digits, samples), batch_size=batch_size, report_loss=True)
    row, result = train(name, network(), asked)
    assert torch.isfinite(row).all()
    assert result.samples == samples
    assert result.loss is not None
    assert np.isfinite([result.loss, result.train_loss]).all()


@every_objective
def test_float64_models_train_in_float64(name: str, digits: Tensors) -> None:
    wide = ClientData.of(digits.inputs[:20].double(), digits.labels[:20])
    row, _ = train(name, network().double(), task(network().double(), wide))
    assert row.dtype == torch.float64
    assert row.any()


@pytest.mark.parametrize("name", ["plain", "proximal", "ditto", "perfedavg"])
def test_no_epoch_means_no_movement(name: str, digits: Tensors) -> None:
    row, result = train(name, network(), task(network(), client(digits), epochs=0))
    assert not row.any()
    assert result.steps == 0
    assert np.isnan(result.train_loss)


def test_the_last_short_batch_is_kept(digits: Tensors) -> None:
    asked = task(network(), client(digits, 33), epochs=2)
    sizes = [len(labels) for _, labels in asked.batches()]
    assert sizes == [8, 8, 8, 8, 1] * 2
    assert train("plain", network(), asked)[1].steps == 2 * asked.batches_per_epoch == 10


def test_an_epoch_serves_every_sample_once_in_an_order_of_its_own(digits: Tensors) -> None:
    data = ClientData(Tensors(digits.inputs, torch.arange(len(digits))), np.arange(40, 73))
    asked = task(network(), data, epochs=2)
    served = torch.cat([labels for _, labels in asked.batches()])
    first, second = served[:33], served[33:]
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(40, 73))
    assert first.tolist() != second.tolist() != list(range(40, 73))


def test_the_loss_at_theta_is_the_mean_over_the_training_part(digits: Tensors) -> None:
    data = client(digits, 1203)  # more than one piece
    asked = task(network(dropout=0.5), data, report_loss=True)
    _, result = train("plain", network(dropout=0.5), asked)
    inputs, labels = data.whole()
    with torch.no_grad():
        expected = nn.functional.cross_entropy(network(dropout=0.5).eval()(inputs), labels)
    assert result.loss == pytest.approx(float(expected), rel=1e-5)
    assert train("plain", network(), replace(asked, report_loss=False))[1].loss is None


def test_plain_sgd_is_torch_sgd(digits: Tensors) -> None:
    options = {"momentum": 0.9, "weight_decay": 0.01}
    asked = task(network(), client(digits), epochs=3)
    row, _ = train("plain", network(), asked, **options)
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=asked.lr, **options)
    for inputs, labels in asked.batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()
    torch.testing.assert_close(asked.theta - row, FlatModel(module).vector, rtol=1e-5, atol=1e-6)


def test_momentum_weights_have_fednovas_closed_form(digits: Tensors) -> None:
    beta, steps = 0.9, 5
    _, result = train("plain", network(), task(network(), client(digits, 33)), momentum=beta)
    closed = (steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta)
    assert result.steps == pytest.approx(closed, rel=1e-12)


def test_proximal_weights_have_fednovas_closed_form(digits: Tensors) -> None:
    _, result = train("proximal", network(), task(network(), client(digits, 33)), mu=0.5)
    pull = 0.1 * 0.5
    assert result.steps == pytest.approx((1 - (1 - pull) ** 5) / pull, rel=1e-12)


def test_fedprox_without_pull_is_plain_and_with_it_stays_closer(digits: Tensors) -> None:
    asked = task(network(), client(digits), epochs=4)
    plain, _ = train("plain", network(), asked)
    assert torch.equal(train("proximal", network(), asked, mu=0.0)[0], plain)
    assert train("proximal", network(), asked, mu=2.0)[0].norm() < 0.9 * plain.norm()


@pytest.mark.parametrize("inner", ["plain", {"name": "proximal", "mu": 1.0}, "perfedavg", "fedrep"])
def test_ditto_uploads_what_its_inner_objective_would(inner: Any, digits: Tensors) -> None:
    module = network(dropout=0.5)
    params = {"name": inner} if isinstance(inner, str) else dict(inner)
    alone = local_objective(**params)
    asked = task(module, client(digits))
    state_alone = state = None
    for _ in range(2):
        row = torch.empty_like(asked.theta)
        expected = alone.train(FlatModel(module), replace(asked, state=state_alone), row)
        around, result = train("ditto", module, replace(asked, state=state), inner=inner)
        assert torch.equal(around, row)
        assert (result.steps, result.train_loss) == (expected.steps, expected.train_loss)
        state_alone, state = expected.state, result.state


def test_dittos_personal_model_is_drawn_to_the_broadcast_one(digits: Tensors) -> None:
    asked = task(network(), client(digits), epochs=3, initial=torch.zeros(1210))
    distance = {}
    for lam in (0.0, 5.0):
        _, result = train("ditto", network(), asked, lam=lam)
        distance[lam] = (result.state["personal"] - asked.theta).norm()
    assert distance[5.0] < 0.5 * distance[0.0]


def test_dittos_personal_model_has_a_rate_of_its_own(digits: Tensors) -> None:
    asked = task(network(), client(digits))
    row, still = train("ditto", network(), asked, personal_lr=0.0)
    _, moving = train("ditto", network(), asked)
    assert row.any()
    assert torch.equal(still.state["personal"], asked.theta)
    assert not torch.equal(moving.state["personal"], asked.theta)


def test_clients_that_never_took_part_are_judged_by_the_initial_model(digits: Tensors) -> None:
    model = FlatModel(network())
    initial = torch.randn(len(model), generator=torch.Generator().manual_seed(1))
    asked = task(network(), client(digits), initial=initial)
    assert torch.equal(local_objective("ditto").personal_vector(model, asked), initial)
    vector = local_objective("fedrep").personal_vector(model, asked)
    assert torch.equal(vector[1040:], initial[1040:])
    assert torch.equal(vector[:1040], asked.theta[:1040])


@every_objective
def test_the_personal_vector_is_that_of_the_state(name: str, digits: Tensors) -> None:
    objective, model = local_objective(name), FlatModel(network())
    assert objective.personal == (name in PERSONAL)
    asked = task(network(), client(digits))
    _, result = train(name, network(), asked)
    vector = objective.personal_vector(model, replace(asked, state=result.state))
    assert torch.equal(vector, asked.theta) == (name not in PERSONAL)
    again = objective.personal_vector(model, replace(asked, state=result.state))
    assert torch.equal(vector, again)


@pytest.mark.parametrize("name", sorted(PERSONAL))
def test_personal_models_fit_their_client_better(name: str, digits: Tensors) -> None:
    data = client(digits, 60)
    objective, model = local_objective(name), FlatModel(network())
    asked, state = task(network(), data, epochs=2), None
    for number in range(3):
        at = replace(asked, state=state, address=SeedAddress(7, number, 0))
        state = train(name, network(), at)[1].state
    vector = objective.personal_vector(model, replace(asked, state=state))
    shared = objective.loss_at(model, asked.theta, data)
    assert objective.loss_at(model, vector, data) < shared


def test_perfedavg_evaluates_after_one_step_on_the_whole_training_part(digits: Tensors) -> None:
    data, model = client(digits, 1200), FlatModel(network())
    asked = task(network(), data)
    vector = local_objective("perfedavg", alpha=0.3).personal_vector(model, asked)
    module = network()
    inputs, labels = data.whole()
    nn.functional.cross_entropy(module(inputs), labels).backward()
    slope = torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()])
    torch.testing.assert_close(vector, asked.theta - 0.3 * slope, rtol=1e-5, atol=1e-6)


def test_hf_perfedavg_adds_the_curvature(digits: Tensors) -> None:
    """On a quadratic with Hessian H the HF step is w - beta (I - alpha H) H (w' - c), exactly."""

    class Point(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.w

    hessian = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    data = ClientData.of(torch.zeros(1, 1), torch.zeros(1))
    asked = task(Point(), data, lr=0.2)
    row, _ = train(
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


def test_fedrep_uploads_nothing_of_the_head(digits: Tensors) -> None:
    row, result = train("fedrep", network(), task(network(), client(digits)))
    assert row[:1040].any()
    assert not row[1040:].any()
    assert result.state["head"].shape == (170,)


def test_fedrep_takes_any_head(digits: Tensors) -> None:
    row, result = train("fedrep", network(), task(network(), client(digits)), head=["0.bias", "3"])
    assert result.state["head"].shape == (186,)
    assert row[:1024].any()
    assert not row[1024:].any()


@pytest.mark.parametrize("head", [["nowhere"], ["0", "3"]])
def test_fedrep_refuses_a_head_that_is_nothing_or_all(head: list[str], digits: Tensors) -> None:
    with pytest.raises(InputError, match="head: expected"):
        train("fedrep", network(), task(network(), client(digits)), head=head)


def test_a_state_of_another_objective_is_refused(digits: Tensors) -> None:
    foreign = {"head": torch.zeros(170)}
    with pytest.raises(StateError, match="client 12: expected 'personal', found"):
        train("ditto", network(), task(network(), client(digits), state=foreign))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": -0.1}, "lr: expected"),
        ({"lr": float("nan")}, "lr: expected"),
        ({"epochs": -1}, "epochs: expected"),
        ({"batch_size": 0}, "batch_size: expected"),
    ],
)
def test_an_impossible_task_is_refused(given: Any, message: str, digits: Tensors) -> None:
    with pytest.raises(InputError, match=message):
        task(network(), client(digits), **given)


def test_a_client_without_samples_is_refused(digits: Tensors) -> None:
    with pytest.raises(InputError, match="client 12 has no training sample"):
        task(network(), client(digits, 0))


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("plain", {"momentum": 1.0}, "momentum: expected"),
        ("plain", {"weight_decay": -1.0}, "weight_decay: expected"),
        ("proximal", {"mu": -0.1}, "mu: expected"),
        ("proximal", {"nu": 0.1}, "'proximal'.*nu"),
        ("ditto", {"lam": float("nan")}, "lam: expected"),
        ("ditto", {"inner": "plane"}, "did you mean 'plain'"),
        ("perfedavg", {"variant": "second"}, "variant: expected"),
        ("perfedavg", {"delta": 0.0}, "delta: expected"),
        ("fedrep", {"head_epochs": -1}, "head_epochs: expected"),
    ],
)
def test_an_impossible_objective_is_refused(name: str, params: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        local_objective(name, **params)


def test_a_registered_objective_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedcraft.local.table.OBJECTIVES", dict(OBJECTIVES))
    register("mine", "fedcraft.local.sgd:PlainSGD")
    assert type(local_objective("mine")) is type(local_objective("plain"))
    with pytest.raises(InputError, match="'plain' is taken"):
        register("plain", "elsewhere:Thing")


def test_the_rate_is_held_for_two_rounds_then_decays() -> None:
    rates = [decayed_rate(0.1, 0.5, t) for t in range(4)]
    assert rates == [0.1, 0.1, 0.05, 0.025]
    assert decayed_rate(0.1, 0.5, 2, exponent="t") == 0.025


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"decay": 0.0}, "decay: expected"),
        ({"round": -1}, "round: expected"),
        ({"exponent": "t+1"}, "exponent: expected"),
    ],
)
def test_an_impossible_rate_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        decayed_rate(**({"lr": 0.1, "decay": 0.9, "round": 1} | given))
