"""Bad input is named, and leaves the aggregator as it was."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import fedcraft
from fedcraft.errors import InputError, NonFiniteError, StateError

GOOD = np.arange(12.0).reshape(3, 4) + 1


def used_craft(**params):
    craft = fedcraft.aggregator("craft", **params)
    craft.aggregate(GOOD)
    return craft


@pytest.mark.parametrize(
    ("updates", "arguments", "words"),
    [
        (GOOD[0], {}, "updates: expected a"),
        (GOOD[:0], {}, "empty"),
        (GOOD[:, :0], {}, "at least one coordinate"),
        (GOOD.astype(np.int64), {}, "float32 or float64"),
        (torch.ones(2, 4, dtype=torch.float16), {}, "float64, found torch.float16; cast first"),
        (GOOD.astype(">f8"), {}, "updates: expected .* found >f8; cast first"),
        (GOOD.astype(np.longdouble), {}, "updates: expected float32 or float64"),
        (GOOD.astype(object), {}, "updates: expected .* found object"),
        ({"a": 1.0}, {}, "updates: expected a torch tensor"),
        ([[1.0, 2.0], [3.0]], {}, "updates: expected numbers, found"),
        (GOOD, {"weights": [1, 2]}, "weights: expected 3"),
        (GOOD, {"weights": [1, 2, -1]}, "weights: expected >= 0"),
        (GOOD, {"weights": [1, np.nan, 1]}, "weights: expected data sizes >= 0, found NaN"),
        (GOOD, {"weights": ["1", "2", "3"]}, "weights: expected numbers, found .*'1'"),
        (GOOD, {"weights": np.array(["1", "2", "3"])}, "weights: expected numbers"),
        (GOOD, {"layers": [2, 3]}, "layers: they add up to 5"),
        (GOOD, {"layers": [slice(0, 2), slice(3, 4)]}, "follow each other"),
        (GOOD, {"layers": [4, 0]}, "non-empty"),
        (GOOD, {"layers": "conv"}, "layers: expected a Layout"),
        (GOOD, {"layers": [2.7, 2.2]}, r"layers: expected whole numbers, found 2\.7"),
        (GOOD, {"layers": [2, slice(2, 4)]}, "layers: expected whole numbers, found slice"),
        (GOOD, {"layers": [slice(0, 2), 2]}, r"layers: expected slices or \(start, stop\)"),
        (GOOD, {"layers": [slice(0, 4, 2)]}, "layers: expected slices without a step"),
        (GOOD, {"layers": [slice(0, 2), slice(2, 9)]}, "layers: they add up to 9"),
        (GOOD, {"client_ids": [1, 2]}, "client_ids: expected 3"),
        (GOOD, {"client_ids": [1, 2, 2]}, "client_ids: expected distinct ids"),
        (GOOD, {"client_ids": [0.1, 1.7, 2.9]}, r"client_ids: expected whole numbers, found 0\.1"),
        (GOOD, {"client_ids": [None, 1, 2]}, "client_ids: expected whole numbers, found None"),
        (GOOD, {"client_ids": "abc"}, "client_ids: expected a sequence of 3"),
        (GOOD, {"client_ids": 7}, "client_ids: expected a sequence of 3"),
        (GOOD, {"losses": [1.0]}, "losses: expected 3"),
        (GOOD, {"losses": [1.0, None, 2.0]}, "losses: expected numbers, found .*None"),
        (GOOD, {"losses": np.array([1.0, None, 2.0])}, "losses: expected numbers, found .*object"),
        (GOOD, {"losses": [1.0, np.nan, 2.0]}, r"^losses: NaN or Inf from client\(s\) \[1\]"),
        (GOOD, {"steps": [1.0, np.nan, 2.0]}, r"^steps: NaN or Inf from client\(s\) \[1\]"),
        (GOOD, {"client_lr": 0.0}, "client_lr: expected a positive"),
        (GOOD, {"client_lr": "0.1"}, "client_lr: expected numbers, found '0.1'"),
        (GOOD, {"client_lr": [0.1, 0.2]}, "client_lr: expected a positive"),
        (np.ones((3, 5)), {}, "earlier rounds had 4 coordinates"),
    ],
)
def test_a_wrong_argument_is_named_and_the_state_survives(updates, arguments, words):
    craft = used_craft()
    before = craft.state_dict()
    with pytest.raises(InputError, match=words):
        craft.aggregate(updates, **arguments)
    after = craft.state_dict()
    assert before.keys() == after.keys()
    assert torch.equal(before["reference"], after["reference"])


@pytest.mark.parametrize(
    "weights",
    [
        np.array([3.0, 2.0, 1.0])[::-1],
        np.array([1.0, 2.0, 3.0], dtype=">f8"),
        np.array([1, 2, 3], dtype=np.longdouble),
        [torch.tensor(1.0), torch.tensor(2), np.float32(3)],
        range(1, 4),
    ],
    ids=["backwards", "big-endian", "longdouble", "scalars", "range"],
)
def test_numbers_may_come_in_any_form(weights):
    plain = fedcraft.aggregator("average").aggregate(GOOD, weights=[1, 2, 3]).direction
    found = fedcraft.aggregator("average").aggregate(GOOD, weights=weights).direction
    np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize(
    "layers",
    [
        [1.0, 3.0],
        np.array([1, 3]),
        torch.tensor([1, 3]),
        [slice(1), slice(1, None)],
        [(0, 1), (1, 4)],
    ],
    ids=["floats", "numpy", "torch", "open slices", "pairs"],
)
def test_layers_may_come_in_any_form(layers):
    step = fedcraft.aggregator("average").aggregate(GOOD, layers=layers, client_ids=[2.0, "b", 7])
    assert step.certificate.alignment.shape == (2, 3)
    assert step.certificate.client_ids == (2, "b", 7)


def test_read_only_updates_are_read_without_a_warning():
    frozen = GOOD.copy()
    frozen.flags.writeable = False
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = fedcraft.aggregator("average").aggregate(frozen, weights=frozen[:, 0])
    finally:
        torch.set_warn_always(always)
    assert found.direction.flags.writeable


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_nonfinite_client_is_named(value):
    bad = GOOD.copy()
    bad[1, 2] = value
    with pytest.raises(NonFiniteError, match="'bob'"):
        used_craft().aggregate(bad, client_ids=["ann", "bob", "cyd"])


def test_drop_leaves_a_nonfinite_client_out_and_says_so():
    bad = GOOD.copy()
    bad[1, 2] = np.nan
    dropped = used_craft(nonfinite="drop").aggregate(bad, weights=[1, 5, 2], client_ids=[7, 8, 9])
    without = used_craft().aggregate(GOOD[[0, 2]], weights=[1, 2], client_ids=[7, 9])
    np.testing.assert_array_equal(dropped.direction, without.direction)
    assert dropped.certificate.dropped == (8,)


def test_drop_cannot_drop_all_clients():
    with pytest.raises(NonFiniteError):
        used_craft(nonfinite="drop").aggregate(np.full((2, 4), np.nan))


def test_a_finite_row_whose_sum_overflows_is_not_called_nonfinite():
    big = np.full((2, 4), 3e38, dtype=np.float32)
    big[1, :2] = -1
    assert np.isfinite(fedcraft.aggregator("craft").aggregate(big).direction).all()


@pytest.mark.parametrize(
    ("rule", "params"),
    [
        ("average", {}),
        ("layer_momentum", {}),
        ("config", {"meaning": "original", "by_layer": True}),
        ("craft", {}),
    ],
)
def test_float32_rows_whose_squares_overflow_are_as_good_as_short_ones(rule, params):
    rng = np.random.default_rng(5)
    updates = rng.normal(size=(4, 30)).astype(np.float32)
    updates[3, :10] = updates[0, :10]  # a layer that is not trusted
    far, near = (fedcraft.aggregator(rule, **params) for _ in range(2))
    for _ in range(2):  # the second round has a reference
        huge = far.aggregate(updates * np.float32(2.0**70), layers=[10, 20])
        plain = near.aggregate(updates, layers=[10, 20])
        torch.testing.assert_close(
            huge.certificate.layers.cosine, plain.certificate.layers.cosine, atol=1e-5, rtol=1e-4
        )
        along = huge.direction / np.abs(huge.direction).max()
        expected = plain.direction / np.abs(plain.direction).max()
        np.testing.assert_allclose(along, expected, atol=1e-5)


@pytest.mark.parametrize("rule", ["average", "layer_momentum", "craft"])
def test_rows_too_long_even_for_float64_are_an_error_not_nan(rule):
    with pytest.raises(NonFiniteError, match="overflow"):
        fedcraft.aggregator(rule).aggregate(1e200 * GOOD)


def test_weights_whose_sum_overflows_are_still_shares():
    found = fedcraft.aggregator("average").aggregate(GOOD, weights=[1e308, 1e308, 1e308])
    np.testing.assert_allclose(found.direction, GOOD.mean(axis=0))


@pytest.mark.parametrize("rule", ["average", "craft", "fedmgda"])
def test_weights_that_are_all_zero_are_equal_weights(rule):
    equal = fedcraft.aggregator(rule).aggregate(GOOD).direction
    found = fedcraft.aggregator(rule).aggregate(GOOD, weights=[0, 0, 0]).direction
    np.testing.assert_array_equal(found, equal)


@pytest.mark.parametrize("kind", [list, tuple])
def test_plain_lists_aggregate(kind):
    rows = kind([kind(row) for row in GOOD.tolist()])
    found = fedcraft.aggregator("craft").aggregate(rows).direction
    expected = fedcraft.aggregator("craft").aggregate(GOOD).direction
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, expected)


def test_an_unknown_rule_suggests_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'craft'"):
        fedcraft.aggregator("crafd")


def test_a_state_of_another_rule_is_refused():
    with pytest.raises(StateError, match="expected one of Craft"):
        used_craft().load_state_dict(fedcraft.aggregator("average").state_dict())


def test_reset_forgets_the_reference():
    craft = used_craft()
    craft.reset()
    fresh = fedcraft.aggregator("craft").aggregate(GOOD).direction
    np.testing.assert_array_equal(craft.aggregate(GOOD).direction, fresh)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kind_and_dtype_come_back(dtype):
    rows = torch.from_numpy(GOOD).to(dtype)
    assert fedcraft.aggregator("craft").aggregate(rows).direction.dtype == dtype
    assert isinstance(fedcraft.aggregator("craft").aggregate(rows.numpy()).direction, np.ndarray)
    wrapped = fedcraft.Updates.from_arrays(rows, layers=[1, 3], weights=[1, 2, 3])
    found = fedcraft.aggregator("craft").aggregate(wrapped)
    assert isinstance(found.direction, torch.Tensor)
    assert found.certificate.layers.names == ("layer0", "layer1")


def test_the_input_is_never_changed_nor_aliased():
    rows = GOOD.copy()
    craft = fedcraft.aggregator("craft")
    step = craft.aggregate(rows)
    np.testing.assert_array_equal(rows, GOOD)
    step.direction[:] = 0
    assert float(torch.as_tensor(craft.state_dict()["reference"]).abs().sum()) > 0
