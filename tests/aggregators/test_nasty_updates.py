"""No rule may answer with NaN, whatever finite updates it is given."""

from __future__ import annotations

import numpy as np
import pytest
import torch

LAYERS = [5, 1, 6]
DIMENSION = sum(LAYERS)


def _nasty():
    draw = np.random.default_rng(17)
    plain = draw.normal(size=(5, DIMENSION))
    half_zero = plain.copy()
    half_zero[:, :5] = 0
    one_layer_zero = plain.copy()
    one_layer_zero[2, 5:] = 0
    lengths = 10.0 ** np.array([-12, -6, 0, 6, 12])[:, None]
    return {
        "zero rows": plain * np.array([1, 0, 1, 0, 1])[:, None],
        "all zero": np.zeros((3, DIMENSION)),
        "a zero layer": half_zero,
        "a zero layer of one client": one_layer_zero,
        "duplicates": plain[[0, 0, 1, 1, 0]],
        "antipodal": np.vstack([plain[:2], -plain[:2]]),
        "scaled antipodal": np.vstack([plain[0], -1e-3 * plain[0]]),
        "rank one": np.outer([1.0, -2.0, 3.0, 0.5], plain[0]),
        "low rank": draw.normal(size=(6, 2)) @ draw.normal(size=(2, DIMENSION)),
        "more clients than coordinates": draw.normal(size=(40, DIMENSION)),
        "wild lengths": plain * lengths,
        "tiny": 1e-12 * plain,
        "huge": 1e12 * plain,
        "a square that vanishes in float32": _against_all(plain, 1e-23),
        "a square that vanishes in float64": _against_all(plain, 1e-170),
        "squares that vanish": 1e-170 * plain,
        "nearly equal": plain[0] + 1e-9 * plain,
        "one client": plain[:1],
        "one zero client": np.zeros((1, DIMENSION)),
    }


def _against_all(plain, length):
    """The last client goes against the sum of the others, with an update of this length."""
    sum_of_units = (plain[:-1] / np.linalg.norm(plain[:-1], axis=1, keepdims=True)).sum(0)
    return np.vstack([plain[:-1], -length * sum_of_units])


NASTY = _nasty()


@pytest.mark.parametrize("kind", NASTY)
def test_the_step_and_its_certificate_are_finite(promise, kind):
    for dtype in (np.float32, np.float64):
        rule = promise.build()
        for arguments in _rounds(NASTY[kind].astype(dtype)):
            step = rule.aggregate(**arguments)
            assert step.direction.dtype == dtype
            assert np.isfinite(step.direction).all()
            assert torch.isfinite(step.certificate.layers.cosine).all()
            assert float(step.certificate.whole.cosine.abs().max()) <= 1 + 1e-3
            if promise.degree == 1:  # rescaling must not blow rounding up
                longest = np.linalg.norm(NASTY[kind], axis=1).max()
                assert np.linalg.norm(step.direction) <= 7 * longest


def _rounds(updates):
    """The same updates thrice: with losses that differ, that are equal, that are zero."""
    count = len(updates)
    draw = np.random.default_rng(1)
    for losses in (draw.uniform(0.1, 3, size=count), np.full(count, 0.7), np.zeros(count)):
        yield {
            "updates": updates,
            "weights": draw.uniform(0.1, 5, size=count),
            "layers": LAYERS,
            "losses": losses,
            "steps": np.ones(count),
            "client_lr": 0.1,
        }
