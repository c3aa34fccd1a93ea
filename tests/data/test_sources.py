"""Data sets by name: found locally, decoded once, cached, and refused clearly when broken."""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from fedcraft.data import Dataset, load, sources
from fedcraft.data.hub import is_offline
from fedcraft.data.schemas import SCHEMAS
from fedcraft.errors import DataError, MissingExtraError

Cifar = Callable[..., tuple[Path, np.ndarray]]
Shard = Callable[..., np.ndarray]
TEST_SHARD = "uoft-cs/cifar10/plain_text/test-00000-of-00001.parquet"


def test_digits_need_no_file_and_are_normalised_by_their_own_moments() -> None:
    digits = load("digits")
    assert (len(digits), digits.input_shape, digits.classes) == (1797, (64,), 10)
    scaled = digits.inputs / digits.scale
    assert scaled.mean() == pytest.approx(digits.mean[0], abs=1e-4)
    assert scaled.std() == pytest.approx(digits.std[0], abs=1e-4)


def test_every_listed_source_is_listed_with_its_shape() -> None:
    listed = sources()
    assert set(listed) == {"digits", "cifar10", "cifar100", "femnist"}
    assert listed["cifar100"].classes == 100
    assert listed["femnist"].input_shape == (1, 28, 28)
    assert [name for name, source in listed.items() if source.embedded] == ["digits"]


def test_cifar_merges_all_shards_of_train_and_test_in_order(cifar: Cifar) -> None:
    root, pixels = cifar()
    data = load("cifar10", root=root)
    np.testing.assert_array_equal(data.inputs, pixels)
    assert data.inputs.dtype == np.uint8
    assert data.augmentation == "crop-flip"
    assert data.classes == 10


def test_folder_comes_from_the_environment_too(
    cifar: Cifar, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, pixels = cifar()
    monkeypatch.setenv("FEDCRAFT_DATA", str(root))
    assert len(load("cifar10")) == len(pixels)


def test_folder_with_the_parquet_files_themselves_is_found(cifar: Cifar) -> None:
    root, _ = cifar()
    folder = root / "uoft-cs" / "cifar10"
    assert len(load("cifar10", root=folder)) == len(load("cifar10", root=folder / "plain_text"))


def test_cifar100_reads_fine_labels_without_augmentation(tmp_path: Path, shard: Shard) -> None:
    for split in ("train", "test"):
        shard(tmp_path / f"{split}-00000-of-00001.parquet", "cifar100", 3)
    data = load("cifar100", root=tmp_path)
    assert (len(data), data.classes, data.augmentation) == (6, 100, "none")


def femnist(tmp_path: Path, shard: Shard, **options: Any) -> Dataset:
    writers = ["big"] * 9 + ["ann"] * 3 + ["bob"] * 4 + ["cyd"] * 2
    path = tmp_path / "flwrlabs" / "femnist" / "data" / "train-00000-of-00001.parquet"
    shard(path, "femnist", len(writers), writer_id=pa.array(writers))
    return load("femnist", root=tmp_path, **options)


def test_femnist_keeps_only_writers_within_the_limit(tmp_path: Path, shard: Shard) -> None:
    data = femnist(tmp_path, shard, clients=3, max_samples=8)
    assert data.owner_names == ("ann", "bob", "cyd")
    assert data.owners is not None
    assert np.bincount(data.owners).tolist() == [3, 4, 2]
    assert data.classes == 62


def test_femnist_draw_of_writers_follows_the_seed(tmp_path: Path, shard: Shard) -> None:
    draws = {femnist(tmp_path, shard, clients=2, seed=s).owner_names for s in range(12)}
    assert len(draws) > 2
    same = [femnist(tmp_path, shard, clients=2, seed=5) for _ in range(2)]
    assert same[0].fingerprint == same[1].fingerprint
    assert same[0].owner_names == same[1].owner_names


def test_femnist_with_all_writers_stays_memory_mapped(tmp_path: Path, shard: Shard) -> None:
    data = femnist(tmp_path, shard, clients=None)
    assert isinstance(data.inputs, np.memmap)
    assert len(data) == 18


def test_more_writers_than_there_are_is_refused(tmp_path: Path, shard: Shard) -> None:
    with pytest.raises(DataError, match=r"clients: expected 1 to 3"):
        femnist(tmp_path, shard, clients=4, max_samples=8)


def test_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(DataError, match="Did you mean 'cifar10'"):
        load("cifar-10")


def test_option_a_source_does_not_take_is_refused(tmp_path: Path, shard: Shard) -> None:
    with pytest.raises(DataError, match="clinets"):
        femnist(tmp_path, shard, clinets=3)
    with pytest.raises(DataError, match="digits"):
        load("digits", clients=3)


def test_offline_without_files_says_where_to_put_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_root \(root= of .*FEDCRAFT_DATA"):
        load("cifar10", root=tmp_path)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _blank(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("shard", "damage", "message"),
    [
        ("test-00000-of-00001", Path.unlink, r"no test-\*\.parquet"),
        ("train-00001-of-00002", Path.unlink, "all shards"),
        ("test-00000-of-00001", _cut, r"test-00000-of-00001\.parquet is not a complete Parquet"),
        ("test-00000-of-00001", _blank, r"test-00000-of-00001\.parquet"),
    ],
)
def test_missing_or_damaged_file_is_named_and_no_reason_to_download(
    cifar: Cifar, shard: str, damage: Callable[[Path], None], message: str
) -> None:
    root, _ = cifar()
    damage((root / TEST_SHARD).with_name(f"{shard}.parquet"))
    with pytest.raises(DataError, match=message):
        load("cifar10", root=root, offline=False)


def _images(data: bytes | None) -> pa.Array:
    return pa.array([{"bytes": data}] * 4, pa.struct([("bytes", pa.binary())]))


def _narrow() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (31, 32)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": None}, r"\['label'\] are missing"),
        ({"label": pa.array([0, 1, 2, 10])}, r"0\.\.9.*label 10"),
        ({"label": pa.array([0, -1, 2, 3])}, "label -1"),
        ({"label": pa.array([0, None, 2, 3])}, "1 nulls"),
        ({"label": pa.array(["a", "b", "c", "d"])}, "must be integers"),
        ({"img": pa.array([1, 2, 3, 4])}, "struct with 'bytes'"),
        ({"img": _images(b"no image at all")}, "row 17 is not an image"),
        ({"img": _images(None)}, "row 17 is not an image"),
        ({"img": _images(b"")}, "row 17 is not an image"),
        ({"img": _images(_narrow())}, r"\(3, 32, 31\), not \(3, 32, 32\)"),
    ],
)
def test_column_that_does_not_hold_labels_or_images_is_refused(
    cifar: Cifar, columns: dict[str, Any], message: str
) -> None:
    root, _ = cifar(**columns)
    with pytest.raises(DataError, match=message):
        load("cifar10", root=root)


def test_files_without_rows_are_refused(tmp_path: Path, shard: Shard) -> None:
    shard(tmp_path / "train-00000-of-00001.parquet", "femnist", 0)
    with pytest.raises(DataError, match="no rows"):
        load("femnist", root=tmp_path)


@pytest.mark.parametrize("name", ["FEDCRAFT_OFFLINE", "HF_HUB_OFFLINE"])
def test_either_variable_switches_the_network_off(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDCRAFT_OFFLINE")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert not is_offline(None)
    monkeypatch.setenv(name, "TRUE")
    assert is_offline(None)
    assert not is_offline(False)


def fake_hub(monkeypatch: pytest.MonkeyPatch, download: Callable[..., str]) -> None:
    hub = types.ModuleType("huggingface_hub")
    hub.snapshot_download = download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def test_hub_is_asked_for_the_parquet_files_of_the_data_set(
    cifar: Cifar, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, pixels = cifar()
    asked: list[Any] = []

    def download(repository: str, **options: Any) -> str:
        asked.append((repository, options))
        return str(root / repository)

    fake_hub(monkeypatch, download)
    assert len(load("cifar10", offline=False)) == len(pixels)
    options = {"repo_type": "dataset", "allow_patterns": ["plain_text/*.parquet"]}
    assert asked == [("uoft-cs/cifar10", options)]


def test_hub_that_fails_is_a_data_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route\nthe whole story of the request")

    fake_hub(monkeypatch, download)
    with pytest.raises(DataError, match=r"no route\)"):
        load("cifar10", offline=False)
    with pytest.raises(DataError, match=r"'cifar10' is not in nowhere and could not be fetched"):
        load("cifar10", root="nowhere", offline=False)


@pytest.mark.parametrize("package", ["huggingface_hub", "pyarrow.parquet", "PIL.Image"])
def test_missing_extra_says_the_pip_command(
    package: str, cifar: Cifar, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _ = cifar()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"fedcraft\[data\]"):
        load("cifar10", root=None if package == "huggingface_hub" else root, offline=False)


def test_sources_are_data_not_a_shared_mutable() -> None:
    sources().clear()
    assert "digits" in sources()


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("cifar10", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ("cifar100", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        ("femnist", (0.1307,), (0.3081,)),
    ],
)
def test_images_are_scaled_by_their_own_mean_and_deviation(
    name: str, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    """Channel by channel, over the training images, to four digits."""
    assert (SCHEMAS[name].mean, SCHEMAS[name].std) == (mean, std)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_named_image_sets_name_their_classes(name: str) -> None:
    schema = SCHEMAS[name]
    assert len(schema.class_names) == len(set(schema.class_names)) == schema.classes
