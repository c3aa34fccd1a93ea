"""Partitioners: every sample once, nobody empty, always an end."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcraft.data import (
    dirichlet,
    from_arrays,
    iid,
    make_partition,
    natural,
    partitioners,
    quantity,
    shards,
)
from fedcraft.data.partition import _cut, _repaired
from fedcraft.errors import DataError

CIFAR_LABELS = np.repeat(np.arange(10), 6000)


def owners_of(made: Any, samples: int) -> np.ndarray:
    owners = np.full(samples, -1)
    owners[made.clients.indices] = made.clients.rows
    return owners


def assert_every_sample_once(made: Any, samples: int) -> None:
    assert np.array_equal(np.sort(made.clients.indices), np.arange(samples))


def test_paper_size_ends_within_seconds_and_repairs_all_clients() -> None:
    start = time.perf_counter()
    made = dirichlet(CIFAR_LABELS, 1000, 0.1, min_size=20, seed=77)
    assert time.perf_counter() - start < 5
    assert_every_sample_once(made, 60_000)
    assert made.clients.sizes.min() == 20
    assert made.moved > 0


def test_repair_moves_no_more_than_what_was_missing() -> None:
    bare = dirichlet(CIFAR_LABELS, 1000, 0.1, min_size=1, seed=3)
    repaired = dirichlet(CIFAR_LABELS, 1000, 0.1, min_size=20, seed=3)
    # min_size=1 moves a few samples itself, so the shortage it leaves is a lower bound.
    shortage = np.maximum(20 - bare.clients.sizes, 0).sum()
    assert shortage <= repaired.moved <= shortage + bare.moved


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(1, 40),
    alpha=st.sampled_from([1e-3, 0.05, 0.5, 100.0]),
    min_size=st.integers(1, 8),
    classes=st.integers(1, 6),
    seed=st.integers(0, 10**6),
)
def test_dirichlet_and_quantity_keep_every_promise(
    clients: int, alpha: float, min_size: int, classes: int, seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(0, classes, clients * min_size + seed % 50)
    for rule in (dirichlet, quantity):
        made = rule(labels, clients, alpha, min_size=min_size, seed=seed)
        assert len(made) == clients
        assert_every_sample_once(made, labels.size)
        assert made.clients.sizes.min() >= min_size


def test_class_is_cut_at_the_floor_of_the_cumulated_shares() -> None:
    # cumsum * 7 = 1.75, 2.45, 6.65, 7 -> cuts 1, 2, 6
    assert _cut(np.array([0.25, 0.1, 0.6, 0.05]), 7).tolist() == [0, 1, 2, 2, 2, 2, 3]


def test_repair_takes_from_the_largest_client_at_that_moment() -> None:
    owners = np.repeat([0, 1, 2], [6, 5, 1])
    made = _repaired(owners, 3, 3, np.arange(12))
    # 6/5/1 -> 5/5/2 (from 0) -> 4/5/3 (tie: lowest id)
    assert made.clients.sizes.tolist() == [4, 5, 3]
    assert made.moved == 2


def test_small_alpha_skews_labels_and_large_alpha_does_not() -> None:
    def share_of_commonest_label(alpha: float) -> float:
        made = dirichlet(CIFAR_LABELS, 50, alpha, seed=1)
        tops = [np.bincount(CIFAR_LABELS[row]).max() / row.size for row in made.clients]
        return float(np.mean(tops))

    assert share_of_commonest_label(0.1) > 0.5
    assert share_of_commonest_label(1000.0) < 0.15


@pytest.mark.parametrize("name", ["dirichlet", "iid", "quantity", "shards"])
def test_same_seed_same_split_other_seed_another(name: str) -> None:
    data = from_arrays(np.zeros((500, 2)), np.arange(500) % 5)
    first, again, other = (make_partition(data, name, 10, seed=s) for s in (4, 4, 5))
    assert np.array_equal(owners_of(first, 500), owners_of(again, 500))
    assert not np.array_equal(owners_of(first, 500), owners_of(other, 500))


def test_iid_sizes_differ_by_at_most_one_and_labels_are_mixed() -> None:
    made = iid(CIFAR_LABELS, 7, seed=2)
    assert_every_sample_once(made, 60_000)
    assert np.ptp(made.clients.sizes) <= 1
    assert np.ptp(np.bincount(CIFAR_LABELS[made.clients[0]])) < 200


def test_shards_give_few_labels_to_each() -> None:
    made = shards(CIFAR_LABELS, 100, shards_per_client=2, seed=0)
    assert_every_sample_once(made, 60_000)
    assert max(np.unique(CIFAR_LABELS[row]).size for row in made.clients) <= 2
    assert made.clients.sizes.tolist() == [600] * 100


def test_quantity_skews_sizes_but_not_labels() -> None:
    made = quantity(CIFAR_LABELS, 20, 0.5, seed=0)
    sizes = made.clients.sizes
    assert sizes.max() > 5 * np.median(sizes) / 2
    largest = made.clients[int(sizes.argmax())]
    assert np.bincount(CIFAR_LABELS[largest]).max() < 0.13 * largest.size


def test_natural_gives_each_owner_its_own_samples() -> None:
    owners = np.array([2, 0, 2, 1, 0])
    made = natural(owners)
    assert [row.tolist() for row in made.clients] == [[1, 4], [3], [0, 2]]


def test_natural_draws_some_owners_when_fewer_clients_are_asked_for() -> None:
    owners = np.repeat(np.arange(30), 4)
    made = natural(owners, 10, seed=1)
    assert len(made) == 10
    for row in made.clients:
        assert np.unique(owners[row]).size == 1
        assert row.size == 4
    assert not np.array_equal(made.clients.indices, natural(owners, 10, seed=2).clients.indices)


def test_registry_names_each_rule_with_its_parameters() -> None:
    assert partitioners() == {
        "dirichlet": {"alpha": 0.1, "min_size": 20},
        "iid": {},
        "natural": {},
        "quantity": {"alpha": 0.5, "min_size": 20},
        "shards": {"shards_per_client": 2},
    }


DATA = from_arrays(np.zeros((30, 2)), np.arange(30) % 3)


@pytest.mark.parametrize(
    ("name", "clients", "params", "message"),
    [
        ("dirichlet", 3, {"min_size": 11}, "need 33 samples, but there are 30"),
        ("dirichlet", 3, {"alpha": 0.0, "min_size": 1}, "alpha: expected a positive"),
        ("dirichlet", 3, {"alpha": float("nan"), "min_size": 1}, "alpha: expected a positive"),
        ("dirichlet", 3, {"min_size": 0}, "min_size: expected at least 1"),
        ("iid", 31, {}, "31 clients of at least 1"),
        ("iid", 0, {}, "clients: expected at least 1"),
        ("iid", None, {}, "needs the number of clients"),
        ("shards", 16, {}, "32 samples"),
        ("shards", 3, {"shards_per_client": 0}, "shards_per_client"),
        ("quantity", 3, {"min_size": 20}, "60 samples"),
        ("natural", 3, {}, "names no owners"),
        ("iid", 3, {"alpha": 1.0}, r"got \['alpha'\]"),
        ("dirichlt", 3, {}, "Did you mean 'dirichlet'"),
    ],
)
def test_impossible_demand_is_a_clear_error(
    name: str, clients: int | None, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        make_partition(DATA, name, clients, **params)


def test_more_clients_than_owners_is_refused() -> None:
    with pytest.raises(DataError, match=r"1 to 2,"):
        natural([0, 1], 3)


def test_empty_data_are_refused_by_every_rule() -> None:
    for rule in (dirichlet, iid, quantity, shards):
        with pytest.raises(DataError, match="empty"):
            rule([], 1)
    with pytest.raises(DataError, match="empty"):
        natural([])
