"""Muon's steps have the momentum's singular vectors, and singular values that its formula sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedcraft import Layout, server_optimizer
from fedcraft.updates import RoundContext

SHAPES = {"conv": (4, 3, 2, 2), "bias": (4,), "tall": (9, 3), "square": (5, 5)}


def taken(directions, **params):
    layout = Layout.from_tensors(SHAPES)
    optimizer = server_optimizer("muon", lr=0.1, **params)
    optimizer.context = RoundContext(torch.zeros(layout.dimension), 0, 5, 0.1, 0.1, layout)
    for direction in directions:
        step = optimizer.step(direction)
    return {name: part.numpy() for name, part in layout.unflatten(step).items()}


def drawn(count, seed=0):
    size = Layout.from_tensors(SHAPES).dimension
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, size)))


def reference(matrix, steps):
    """Newton-Schulz acts on the singular values alone: s <- a s + b s^3 + c s^5."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.linalg.norm(values)
    for _ in range(steps):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left * values @ right, values


@pytest.mark.parametrize("steps", [1, 5])
def test_matrices_are_orthogonalised_and_vectors_are_not(steps):
    one, two = drawn(2)
    velocity = Layout.from_tensors(SHAPES).unflatten(0.8 * one + two)
    found = taken([one, two], beta=0.8, scale="muon", steps=steps)
    np.testing.assert_allclose(found["bias"], 0.1 * velocity["bias"].numpy())
    for name in ("conv", "tall", "square"):
        matrix = velocity[name].numpy().reshape(velocity[name].shape[0], -1)
        expected, values = reference(matrix, steps)
        stretch = max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5
        np.testing.assert_allclose(
            found[name].reshape(matrix.shape), 0.1 * stretch * expected, atol=1e-10
        )
        if steps == 5:
            assert values.min() > 0.5, "nearly orthogonal"
            assert values.max() < 1.3


def test_with_the_momentums_length_only_the_geometry_differs():
    direction = drawn(1)[0]
    found = taken([direction])
    for name, part in Layout.from_tensors(SHAPES).unflatten(direction).items():
        assert np.linalg.norm(found[name]) == pytest.approx(0.1 * float(part.norm()))


def test_a_matrix_of_zeros_stays_zero():
    direction = drawn(1)[0]
    tall = Layout.from_tensors(SHAPES).unflatten(direction)["tall"]
    tall.zero_()
    assert not taken([direction])["tall"].any()


def test_without_shapes_it_is_momentum():
    one, two = drawn(2)
    muon, momentum = (server_optimizer(name, lr=0.3) for name in ("muon", "momentum"))
    for direction in (one, two):
        assert torch.equal(muon.step(direction), momentum.step(direction))
