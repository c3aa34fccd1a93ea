"""Federations: the 80/20 split, its hash, its file, virtual clients."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcraft.data import Federation, Ragged, federate, from_arrays, load
from fedcraft.data.splitfile import encode
from fedcraft.errors import DataError


@pytest.fixture(scope="module")
def federation() -> Federation:
    return federate(load("digits"), "dirichlet", 30, alpha=0.3, seed=5)


def sized(*sizes: int, **options: Any) -> Federation:
    owners = np.repeat(np.arange(len(sizes)), sizes)
    data = from_arrays(np.zeros((owners.size, 1)), owners % 2, owners, classes=2)
    return federate(data, "natural", **options)


def test_training_part_is_the_floor_of_four_fifths_and_at_least_one() -> None:
    split = sized(1, 2, 4, 5, 9, 10, 34)
    assert split.sizes("train").tolist() == [1, 1, 3, 4, 7, 8, 27]
    assert split.sizes("test").tolist() == [0, 1, 1, 1, 2, 2, 7]


def test_floor_is_of_the_decimal_fraction() -> None:
    assert sized(100, train_fraction=0.29).sizes("train").tolist() == [29]


def test_parts_are_disjoint_and_cover_each_client(federation: Federation) -> None:
    parts = [federation.train, federation.test, federation.validation]
    everything = np.concatenate([part.indices for part in parts])
    assert np.array_equal(np.sort(everything), np.arange(1797))
    assert federation.validation.indices.size == 0


def test_validation_is_cut_from_the_training_part_and_leaves_one() -> None:
    whole, cut = sized(1, 2, 10), sized(1, 2, 10, validation_fraction=0.5)
    assert cut.sizes("validation").tolist() == [0, 0, 4]
    assert cut.sizes("train").tolist() == [1, 1, 4]
    assert np.array_equal(cut.test.indices, whole.test.indices)


def test_test_part_is_drawn_at_random_from_the_whole_client() -> None:
    split = sized(1000, seed=1)
    test = split.rows(0, "test")
    assert 300 < test.mean() < 700
    assert not np.array_equal(np.sort(test), np.sort(sized(1000, seed=2).rows(0, "test")))


def test_weights_are_shares_of_the_training_samples() -> None:
    np.testing.assert_allclose(sized(5, 10).weights(), [4 / 12, 8 / 12])


def test_label_counts_agree_with_a_count_by_hand(federation: Federation) -> None:
    counts = federation.label_counts()
    assert counts.shape == (30, 10)
    labels = federation.dataset.labels
    for client in (0, 7, 29):
        by_hand = np.bincount(labels[federation.rows(client)], minlength=10)
        assert np.array_equal(counts[client], by_hand)
    assert federation.label_counts("test").sum() == federation.test.indices.size


def test_client_view_gives_scaled_tensors_of_each_split(federation: Federation) -> None:
    client = federation.client(3)
    inputs, labels = client.tensors("test")
    data = federation.dataset
    expected = (data.inputs[client.test] / 16.0 - data.mean[0]) / data.std[0]
    np.testing.assert_allclose(inputs.numpy(), expected, atol=1e-5)
    assert np.array_equal(labels.numpy(), data.labels[client.test])


def test_hash_depends_on_seed_split_clients_and_data(federation: Federation) -> None:
    data = federation.dataset
    again = federate(data, "dirichlet", 30, alpha=0.3, seed=5)
    assert again.split_hash == federation.split_hash
    others = [
        federate(data, "dirichlet", 30, alpha=0.3, seed=6),
        federation.virtual(60),
        replace(federation, dataset=replace(data, fingerprint="other")),
        replace(federation, test=federation.validation, validation=federation.test),
    ]
    assert len({federation.split_hash, *(other.split_hash for other in others)}) == 5


def test_saved_split_comes_back_bit_for_bit(federation: Federation, tmp_path: Path) -> None:
    path = federation.virtual(77).save(tmp_path / "split.npz")
    loaded = Federation.load(path, federation.dataset)
    assert loaded.split_hash == federation.virtual(77).split_hash
    assert (len(loaded), loaded.moved) == (77, federation.moved)
    assert np.array_equal(loaded.rows(76), federation.rows(76 % 30))
    assert [file.name for file in tmp_path.iterdir()] == ["split.npz"]


def test_split_file_needs_no_pickle(federation: Federation, tmp_path: Path) -> None:
    with np.load(federation.save(tmp_path / "split.npz"), allow_pickle=False) as file:
        assert np.array_equal(file["train_indices"], federation.train.indices)


def test_split_of_other_data_is_refused(federation: Federation, tmp_path: Path) -> None:
    path = federation.save(tmp_path / "split.npz")
    other = from_arrays(federation.dataset.inputs, 9 - federation.dataset.labels)
    with pytest.raises(DataError, match="fingerprint"):
        Federation.load(path, other)


def test_changed_split_is_refused(federation: Federation, tmp_path: Path) -> None:
    about = {
        "hash": federation.split_hash,
        "dataset": "digits",
        "fingerprint": federation.dataset.fingerprint,
        "clients": 30,
        "moved": 0,
    }
    arrays = {name: array.copy() for name, array in federation.arrays().items()}
    arrays["train_indices"][:2] = arrays["train_indices"][1::-1]
    path = tmp_path / "split.npz"
    path.write_bytes(encode(arrays, about))
    with pytest.raises(DataError, match="do not match its own hash"):
        Federation.load(path, federation.dataset)
    del arrays["test_pointers"]
    path.write_bytes(encode(arrays, about))
    with pytest.raises(DataError, match="must hold the arrays"):
        Federation.load(path, federation.dataset)
    arrays["test_pointers"] = np.zeros(3)  # type: ignore[assignment]
    path.write_bytes(encode(arrays, about))
    with pytest.raises(DataError, match="int64"):
        Federation.load(path, federation.dataset)


@pytest.mark.parametrize("damage", ["truncated", "text", "absent", "flipped", "other"])
def test_unreadable_split_is_refused(federation: Federation, tmp_path: Path, damage: str) -> None:
    path = federation.save(tmp_path / "split.npz")
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "text":
        path.write_text("hello")
    elif damage == "absent":
        path.unlink()
    elif damage == "flipped":
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
    else:
        np.savez(path, about=np.array("{}"))
    with pytest.raises(DataError, match=r"split\.npz|no split"):
        Federation.load(path, federation.dataset)


def test_split_file_is_as_open_as_the_umask_says(federation: Federation, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = federation.save(tmp_path / "split.npz")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_full_disk_leaves_the_old_split(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = federation.save(tmp_path / "split.npz")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", full)
        with pytest.raises(OSError, match="No space"):
            federation.virtual(2).save(path)
    assert len(Federation.load(path, federation.dataset)) == 30
    assert len(list(tmp_path.iterdir())) == 1


def test_virtual_client_sees_the_data_of_its_number_mod_n(federation: Federation) -> None:
    many = federation.virtual(100_000)
    assert len(many) == 100_000
    for split in ("train", "test"):
        assert np.array_equal(many.rows(99_999, split), federation.rows(99_999 % 30, split))
    assert many.sizes().shape == (100_000,)
    assert many.label_counts()[61].tolist() == federation.label_counts()[1].tolist()
    assert many.train is federation.train


def test_hundred_thousand_real_clients_are_cheap() -> None:
    data = from_arrays(np.zeros((300_000, 1), np.uint8), np.arange(300_000) % 10)
    split = federate(data, "iid", 100_000, seed=0)
    assert split.sizes("train").tolist() == [2] * 100_000
    held = sum(array.nbytes for array in split.arrays().values())
    assert held < 8 * (300_000 + 3 * 100_001) + 1


def test_client_without_samples_is_refused() -> None:
    data = from_arrays(np.zeros((3, 1)), [0, 1, 0])
    empty = Ragged.from_rows([np.array([], int)] * 2)
    with pytest.raises(DataError, match="client 1 has no training sample"):
        Federation(data, Ragged.from_rows([np.array([0]), np.array([], int)]), empty, empty)


def test_rows_outside_the_data_are_refused() -> None:
    data = from_arrays(np.zeros((3, 1)), [0, 1, 0])
    none = Ragged.from_rows([np.array([], int)])
    for row in (3, -1):
        with pytest.raises(DataError, match=r"0\.\.2"):
            Federation(data, Ragged.from_rows([np.array([row])]), none, none)


def test_parts_with_different_clients_are_refused() -> None:
    data = from_arrays(np.zeros((3, 1)), [0, 1, 0])
    one = Ragged.from_rows([np.array([0])])
    two = Ragged.from_rows([np.array([1]), np.array([2])])
    with pytest.raises(DataError, match="one row per client"):
        Federation(data, one, two, one)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_fraction": 0.0}, r"train_fraction: expected a share in \(0, 1\]"),
        ({"train_fraction": 1.5}, "train_fraction"),
        ({"validation_fraction": 1.0}, r"validation_fraction: expected a share in \[0, 1\)"),
        ({"validation_fraction": -0.1}, "validation_fraction"),
    ],
)
def test_fraction_outside_its_range_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        sized(5, **options)


def test_unknown_client_or_split_is_refused(federation: Federation) -> None:
    with pytest.raises(DataError, match=r"0 to 29"):
        federation.rows(30)
    with pytest.raises(DataError, match=r"0 to 29"):
        federation.client(-1)
    with pytest.raises(DataError, match="split: expected one of"):
        federation.sizes("tests")
    with pytest.raises(DataError, match="at least 1"):
        federation.virtual(0)


def test_ragged_rows_come_back_and_bad_pointers_are_refused() -> None:
    rows = [np.array([4, 1]), np.array([], int), np.array([7])]
    ragged = Ragged.from_rows(rows)
    assert [row.tolist() for row in ragged] == [[4, 1], [], [7]]
    assert ragged[-1].tolist() == [7]
    assert ragged.rows.tolist() == [0, 0, 2]
    with pytest.raises(IndexError):
        ragged[3]
    for pointers in ([0, 2], [1, 3], [0, 3, 2, 3], []):
        with pytest.raises(DataError, match="pointers"):
            Ragged(np.arange(3), np.array(pointers, np.int64))
