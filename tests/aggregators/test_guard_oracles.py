"""Guards and robust rules against Flower's own strategies and torchjd's Krum."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedcraft import aggregator
from fedcraft.aggregators import guard

strategies = pytest.importorskip("flwr.serverapp.strategy")
flwr = pytest.importorskip("flwr.app")

SEEDS = range(5)


def draw_round(seed, clients=11, dimension=40):
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(clients, dimension)) + draw.normal(size=dimension)
    rows[: clients // 4] *= -draw.uniform(1, 30)
    return rows, draw.integers(5, 50, clients)


def flower(strategy, rows, samples):
    """Let a strategy of Flower aggregate models theta_i = -g_i, so that its answer is -g."""
    replies = []
    for row, count in zip(rows, samples, strict=True):
        arrays = flwr.ArrayRecord({"w": flwr.Array(-row)})
        metrics = flwr.MetricRecord({"num-examples": int(count)})
        content = flwr.RecordDict({"arrays": arrays, "metrics": metrics})
        replies.append(SimpleNamespace(content=content, has_error=lambda: False))
    arrays, _ = strategy.aggregate_train(1, replies)
    return -next(iter(arrays.to_numpy_ndarrays()))


def ours(rule, rows, samples, **named):
    built = aggregator(rule)
    if named:
        built = built.guarded(guard(named.pop("name"), cap=None, **named))
    return built.aggregate(rows, weights=samples).direction


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("hostile", [0, 1, 3])
@pytest.mark.parametrize("keep", [1, 4, 8])
def test_multi_krum_and_krum_are_flowers(seed, hostile, keep):
    rows, samples = draw_round(seed)
    oracle = strategies.MultiKrum(num_malicious_nodes=hostile, num_nodes_to_select=keep)
    expected = flower(oracle, rows, samples)
    found = ours("average", rows, samples, name="multi_krum", hostile=hostile, keep=keep)
    np.testing.assert_allclose(found, expected, atol=1e-10)
    if keep == 1:
        krum = flower(strategies.Krum(num_malicious_nodes=hostile), rows, samples)
        alone = ours("average", rows, samples, name="krum", hostile=hostile)
        np.testing.assert_allclose(alone, krum, atol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("hostile", [1, 2])
def test_bulyan_is_flowers(seed, hostile):
    rows, samples = draw_round(seed)
    expected = flower(strategies.Bulyan(num_malicious_nodes=hostile), rows, samples)
    found = aggregator("bulyan", hostile=hostile).aggregate(rows).direction
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("clients", [10, 11])
def test_trimmed_mean_and_median_are_flowers(seed, clients):
    rows, samples = draw_round(seed, clients)
    trimmed = flower(strategies.FedTrimmedAvg(beta=0.2), rows, samples)
    np.testing.assert_allclose(
        aggregator("trimmed_mean", beta=0.2).aggregate(rows).direction, trimmed, atol=1e-10
    )
    median = flower(strategies.FedMedian(), rows, samples)
    np.testing.assert_allclose(
        aggregator("coordinate_median").aggregate(rows).direction, median, atol=1e-10
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_krum_is_torchjds_where_both_measure_squares(seed):
    """torchjd sums distances, Blanchard et al. and Flower squares: they differ in close calls."""
    krum = pytest.importorskip("torchjd.aggregation").Krum
    rows, _ = draw_round(seed)
    expected = krum(n_byzantine=3, n_selected=1)(torch.from_numpy(rows)).numpy()
    found = ours("average", rows, np.ones(len(rows)), name="krum", hostile=3)
    np.testing.assert_allclose(found, expected, atol=1e-10)
