"""The cache: written once, trusted while untouched, rebuilt when broken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcraft.data import load
from fedcraft.errors import DataError

Cifar = Callable[..., tuple[Path, np.ndarray]]
Shard = Callable[..., np.ndarray]
TEST_SHARD = "uoft-cs/cifar10/plain_text/test-00000-of-00001.parquet"


def entry(cache: Path) -> Path:
    (folder,) = cache.iterdir()
    return folder


def test_second_load_maps_the_cache_and_decodes_nothing(
    cifar: Cifar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, pixels = cifar()
    first = load("cifar10", root=root)
    monkeypatch.setattr("fedcraft.data.loading.decode", lambda *_: pytest.fail("decoded again"))
    second = load("cifar10", root=root)
    assert isinstance(second.inputs, np.memmap)
    np.testing.assert_array_equal(second.inputs, pixels)
    assert second.fingerprint == first.fingerprint
    assert entry(tmp_path / "cache").name.startswith("cifar10-")


def test_uncached_load_gives_the_same_fingerprint_and_writes_nothing(
    cifar: Cifar, tmp_path: Path
) -> None:
    root, _ = cifar()
    bare = load("cifar10", root=root, cache=False)
    assert not (tmp_path / "cache").exists()
    assert bare.fingerprint == load("cifar10", root=root).fingerprint


def test_changed_source_file_is_decoded_again(cifar: Cifar, shard: Shard) -> None:
    root, _ = cifar()
    before = load("cifar10", root=root)
    shard(root / TEST_SHARD, "cifar10", 9, seed=8)
    assert len(load("cifar10", root=root)) == len(before) + 5


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no meta", "bad meta", "header"])
def test_corrupt_cache_is_rebuilt(cifar: Cifar, tmp_path: Path, damage: str) -> None:
    root, pixels = cifar()
    load("cifar10", root=root)
    folder = entry(tmp_path / "cache")
    inputs, meta = folder / "inputs.npy", folder / "meta.json"
    content = bytearray(inputs.read_bytes())
    if damage == "truncated":
        inputs.write_bytes(content[:-7])
    elif damage == "flipped":
        content[500] ^= 0xFF
        inputs.write_bytes(content)
    elif damage == "header":
        content[:6] = b"broken"
        inputs.write_bytes(content)
    elif damage == "no meta":
        meta.unlink()
    else:
        meta.write_text("[]")
    np.testing.assert_array_equal(load("cifar10", root=root).inputs, pixels)


def test_touched_but_whole_cache_is_kept(
    cifar: Cifar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, pixels = cifar()
    load("cifar10", root=root)
    os.utime(entry(tmp_path / "cache") / "inputs.npy")
    monkeypatch.setattr("fedcraft.data.loading.decode", lambda *_: pytest.fail("decoded again"))
    np.testing.assert_array_equal(load("cifar10", root=root).inputs, pixels)


def test_cache_that_cannot_be_written_names_the_way_out(cifar: Cifar, tmp_path: Path) -> None:
    root, _ = cifar()
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match="cache=False"):
        load("cifar10", root=root, cache=tmp_path / "file" / "inside")


def test_full_disk_while_caching_leaves_no_half_entry(
    cifar: Cifar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, pixels = cifar()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(DataError, match="No space left"):
            load("cifar10", root=root)
    assert list((tmp_path / "cache").iterdir()) == []
    assert len(load("cifar10", root=root)) == len(pixels)
