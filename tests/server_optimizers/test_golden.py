"""Server optimisers against Flower's: recorded runs, and the strategies themselves."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fedcraft import aggregator, server_optimizer


def _follow(case, optimizer, relative_error, tolerance):
    """Average each round, hand the mean to the optimiser, yield what the reference did."""
    average = aggregator("average")
    for record in case.rounds:
        direction = average.aggregate(record["updates"], weights=record["n"]).direction
        step = optimizer.step(direction)
        if np.abs(direction).max() > 0:
            assert relative_error(step, record["step"]) < tolerance
        else:
            np.testing.assert_allclose(step, record["step"], atol=1e-12)
        yield record


def _adaptive(case, name, **params):
    betas = {} if name == "adagrad" else {"beta2": case["beta2"]}
    return server_optimizer(
        name, lr=case["eta_g"], beta1=case["beta1"], tau=case["tau"], **betas, **params
    )


@pytest.mark.golden("fedavgm-*.npz")
def test_momentum_reproduces_fedavgm(golden_case, relative_error):
    momentum = server_optimizer("momentum", lr=golden_case["eta_g"], beta=golden_case["beta"])
    for record in _follow(golden_case, momentum, relative_error, 1e-12):
        assert relative_error(momentum.state_dict()["velocity"], record["momentum"]) < 1e-12


def _check_moments(case, optimizer, relative_error):
    for record in _follow(case, optimizer, relative_error, 1e-10):
        state = optimizer.state_dict()
        np.testing.assert_allclose(state["first"], record["m"], rtol=1e-10, atol=1e-15)
        np.testing.assert_allclose(state["second"], record["v"], rtol=1e-10, atol=1e-18)


@pytest.mark.golden("fedadagrad-*.npz")
def test_adagrad_reproduces_fedadagrad(golden_case, relative_error):
    _check_moments(golden_case, _adaptive(golden_case, "adagrad"), relative_error)


@pytest.mark.golden("fedadam-*.npz")
def test_adam_reproduces_flowers_fedadam_with_its_bias_correction(golden_case, relative_error):
    adam = _adaptive(golden_case, "adam", bias_correction="flwr")
    _check_moments(golden_case, adam, relative_error)


@pytest.mark.golden("fedadam_nobias-*.npz")
def test_adam_reproduces_the_papers_fedadam(golden_case, relative_error):
    _check_moments(golden_case, _adaptive(golden_case, "adam"), relative_error)


@pytest.mark.golden("fedyogi-*.npz")
def test_yogi_reproduces_fedyogi(golden_case, relative_error):
    _check_moments(golden_case, _adaptive(golden_case, "yogi"), relative_error)


FLOWER = {
    "FedAvgM": (
        {"server_learning_rate": 0.3, "server_momentum": 0.8},
        ("momentum", {"lr": 0.3, "beta": 0.8}),
    ),
    "FedAdagrad": ({"eta": 0.2, "tau": 1e-2}, ("adagrad", {"lr": 0.2, "tau": 1e-2})),
    "FedAdam": (
        {"eta": 0.2, "beta_1": 0.8, "beta_2": 0.95},
        ("adam", {"lr": 0.2, "beta1": 0.8, "beta2": 0.95, "bias_correction": "flwr"}),
    ),
    "FedYogi": ({"eta": 0.05, "tau": 1e-2}, ("yogi", {"lr": 0.05, "tau": 1e-2})),
}


@pytest.mark.parametrize("name", FLOWER)
def test_the_steps_are_those_of_flowers_strategy(name):
    strategies = pytest.importorskip("flwr.serverapp.strategy")
    theirs, (ours, params) = FLOWER[name]
    strategy = getattr(strategies, name)(**theirs)
    optimizer, average = server_optimizer(ours, **params), aggregator("average")
    draw = np.random.default_rng(8)
    theta = draw.normal(size=9)
    for number in range(1, 5):
        updates, sizes = 0.1 * draw.normal(size=(3, 9)), draw.integers(1, 50, size=3)
        expected = _flower_round(strategy, number, theta, updates, sizes)
        theta = theta - optimizer.step(average.aggregate(updates, weights=sizes).direction)
        np.testing.assert_allclose(theta, expected, rtol=1e-10)


def _flower_round(strategy, number, theta, updates, sizes):
    """Run the strategy's own aggregation; replies are stand-ins, since real ones need a run."""
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

    if hasattr(strategy, "eta"):  # the FedOpt family keeps plain arrays
        strategy.current_arrays = {"theta": theta}
    else:
        strategy.current_arrays = ArrayRecord({"theta": Array(theta)})
    contents = [
        RecordDict(
            {
                "arrays": ArrayRecord({"theta": Array(theta - g)}),
                "metrics": MetricRecord({"num-examples": int(n)}),
            }
        )
        for g, n in zip(updates, sizes, strict=True)
    ]
    replies = [SimpleNamespace(content=c, has_error=lambda: False) for c in contents]
    arrays, _ = strategy.aggregate_train(number, replies)
    return arrays.to_numpy_ndarrays()[0]
