"""What every server optimiser promises, and the formulas that no recording covers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedcraft import server_optimizer
from fedcraft.errors import InputError, NonFiniteError, StateError
from fedcraft.server_optimizers import OPTIMIZERS

ALL = [
    ("sgd", {}),
    ("momentum", {}),
    ("muon", {}),
    ("momentum", {"dampened": True, "nesterov": True}),
    ("adagrad", {}),
    ("adam", {}),
    ("adam", {"bias_correction": "keras"}),
    ("adam", {"bias_correction": "flwr"}),
    ("yogi", {}),
]
every = pytest.mark.parametrize(("name", "params"), ALL)


def _directions(count, dimension=6, seed=0):
    return 0.1 * torch.from_numpy(np.random.default_rng(seed).normal(size=(count, dimension)))


def test_every_optimizer_is_under_test():
    assert {name for name, _ in ALL} == set(OPTIMIZERS)


@every
def test_a_saved_state_continues_bit_for_bit(name, params):
    first, second = (server_optimizer(name, lr=0.1, **params) for _ in range(2))
    *before, last = _directions(4)
    for direction in before:
        first.step(direction)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.step(last), second.step(last))


@every
def test_the_state_is_tensors_and_json(name, params):
    optimizer = server_optimizer(name, **params)
    optimizer.step(_directions(1)[0])
    plain = {k: v for k, v in optimizer.state_dict().items() if not isinstance(v, torch.Tensor)}
    assert json.loads(json.dumps(plain)) == plain


@every
def test_a_saved_state_is_not_changed_by_later_steps(name, params):
    optimizer = server_optimizer(name, **params)
    one, two = _directions(2)
    optimizer.step(one)
    state = optimizer.state_dict()
    copies = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}
    optimizer.step(two)
    for key, value in copies.items():
        same = torch.equal(state[key], value) if isinstance(value, torch.Tensor) else None
        assert same if same is not None else state[key] == value


@every
def test_reset_forgets(name, params):
    optimizer = server_optimizer(name, **params)
    one, two = _directions(2)
    fresh = optimizer.step(one)
    optimizer.step(two)
    optimizer.reset()
    assert torch.equal(optimizer.step(one), fresh)


@every
def test_numpy_in_numpy_out_and_torch_in_torch_out(name, params):
    direction = _directions(1)[0]
    from_torch = server_optimizer(name, **params).step(direction)
    from_numpy = server_optimizer(name, **params).step(direction.numpy())
    assert isinstance(from_numpy, np.ndarray)
    np.testing.assert_array_equal(from_numpy, from_torch.numpy())
    small = server_optimizer(name, **params).step(direction.to(torch.float32))
    assert small.dtype == torch.float32


@every
def test_the_direction_is_not_changed_and_not_shared(name, params):
    optimizer = server_optimizer(name, **params)
    direction = _directions(1)[0]
    kept = direction.clone()
    step = optimizer.step(direction)
    assert torch.equal(direction, kept)
    step.fill_(7.0)
    again = server_optimizer(name, **params)
    again.step(kept)
    assert torch.equal(optimizer.step(kept), again.step(kept))


@every
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (torch.tensor([1.0, float("nan"), 0, 0, 0, 0]), NonFiniteError),
        (torch.zeros(5), InputError),
        (torch.zeros(2, 3), InputError),
        (torch.zeros(6, dtype=torch.int64), InputError),
        (torch.zeros(6, dtype=torch.float16), InputError),
        (torch.zeros(6, dtype=torch.bfloat16), InputError),
        (np.zeros(6, dtype=np.float16), InputError),
        (np.zeros(6, dtype=">f8"), InputError),
        ([0.0] * 6, InputError),
    ],
    ids=[
        *("nan", "dimension", "matrix", "integers", "half", "bfloat", "numpy half", "big-endian"),
        "list",
    ],
)
def test_a_bad_direction_is_refused_and_changes_nothing(name, params, bad, error):
    optimizer, twin = (server_optimizer(name, **params) for _ in range(2))
    one, two = _directions(2)
    optimizer.step(one)
    twin.step(one)
    with pytest.raises(error, match="direction"):
        optimizer.step(bad)
    assert torch.equal(optimizer.step(two), twin.step(two))


@every
def test_the_rate_scales_the_step(name, params):
    direction = _directions(1)[0]
    small, large = (server_optimizer(name, lr=lr, **params).step(direction) for lr in (0.1, 1.0))
    torch.testing.assert_close(10 * small, large)


def test_sgd_is_the_rate_times_the_direction():
    np.testing.assert_allclose(server_optimizer("sgd", lr=0.5).step(np.array([2.0, -4.0])), [1, -2])


def test_dampening_is_the_factor_one_minus_beta():
    plain, dampened = (server_optimizer("momentum", beta=0.7, dampened=d) for d in (False, True))
    for direction in _directions(4):
        torch.testing.assert_close(dampened.step(direction), 0.3 * plain.step(direction))


def test_nesterov_looks_one_step_ahead():
    optimizer = server_optimizer("momentum", beta=0.5, nesterov=True)
    steps = [float(optimizer.step(np.array([g]))[0]) for g in (1.0, 2.0)]
    assert steps == [1.0 + 0.5 * 1.0, 2.0 + 0.5 * 2.5]


def test_momentum_continues_after_a_zero_round():
    optimizer = server_optimizer("momentum", beta=0.5)
    optimizer.step(np.array([1.0]))
    assert optimizer.step(np.array([0.0])) == pytest.approx(0.5)


def test_keras_correction_is_that_of_torchs_adam():
    """With exponents from 1 and eps scaled likewise it is the textbook Adam."""
    tau = 1e-12
    optimizer = server_optimizer("adam", lr=0.1, tau=tau, bias_correction="keras")
    theta = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    textbook = torch.optim.Adam([theta], lr=0.1, betas=(0.9, 0.99), eps=tau)
    found = torch.zeros(6, dtype=torch.float64)
    for direction in _directions(5):
        theta.grad = direction.clone()
        textbook.step()
        found = found - optimizer.step(direction)
    torch.testing.assert_close(found, theta.detach(), rtol=1e-8, atol=1e-10)


def test_the_corrections_agree_in_the_long_run():
    rates = {}
    for kind in ("none", "keras", "flwr"):
        optimizer = server_optimizer("adam", bias_correction=kind)
        for _ in range(3000):
            step = optimizer.step(np.array([0.5]))
        rates[kind] = float(step[0])
    assert rates["keras"] == pytest.approx(rates["none"], rel=1e-9)
    assert rates["flwr"] == pytest.approx(rates["none"], rel=1e-9)


def test_yogi_shrinks_v_by_the_same_amount_it_grows():
    optimizer = server_optimizer("yogi", beta1=0.0, beta2=0.9)
    optimizer.step(np.array([10.0]))
    optimizer.step(np.array([1.0]))
    assert float(optimizer.state_dict()["second"][0]) == pytest.approx(10.0 - 0.1)


def test_coordinates_that_never_moved_stay_put():
    for name in ("adagrad", "adam", "yogi"):
        assert server_optimizer(name).step(np.array([0.0, 1.0]))[0] == 0.0


def test_a_foreign_state_is_refused():
    with pytest.raises(StateError, match="Adam"):
        server_optimizer("adam").load_state_dict(server_optimizer("yogi").state_dict())


@pytest.mark.parametrize(
    ("name", "params", "culprit"),
    [
        ("sgd", {"lr": 0.0}, "lr"),
        ("sgd", {"lr": float("inf")}, "lr"),
        ("sgd", {"beta": 0.9}, "beta"),
        ("momentum", {"beta": 1.0}, "beta"),
        ("adagrad", {"tau": 0.0}, "tau"),
        ("adagrad", {"beta1": -0.1}, "beta1"),
        ("adam", {"beta2": 1.0}, "beta2"),
        ("adam", {"bias_correction": "torch"}, "bias_correction"),
        ("yogi", {"beta2": -1.0}, "beta2"),
        ("adan", {}, "Did you mean 'adam'"),
        ("nonsense", {}, "Known"),
    ],
)
def test_impossible_choices_are_refused(name, params, culprit):
    with pytest.raises(InputError, match=culprit):
        server_optimizer(name, **params)
