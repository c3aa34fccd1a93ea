"""The cache: written once, checked at every use, rebuilt when damaged."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcraft.data import load
from fedcraft.data.cache import cached
from fedcraft.data.decode import Arrays
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


@pytest.mark.parametrize(
    "damage",
    [
        "truncated",
        "flipped",
        "flipped, same time",
        "emptied",
        "header",
        "labels gone",
        "no meta",
        "bad meta",
        "other name",
    ],
)
def test_corrupt_cache_is_rebuilt(cifar: Cifar, tmp_path: Path, damage: str) -> None:
    root, pixels = cifar()
    load("cifar10", root=root)
    folder = entry(tmp_path / "cache")
    inputs, meta = folder / "inputs.npy", folder / "meta.json"
    content, times = bytearray(inputs.read_bytes()), inputs.stat()
    if damage == "truncated":
        inputs.write_bytes(content[:-7])
    elif damage.startswith("flipped"):
        content[500] ^= 0xFF
        inputs.write_bytes(content)
        if damage == "flipped, same time":
            os.utime(inputs, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif damage == "emptied":
        inputs.write_bytes(b"")
    elif damage == "labels gone":
        (folder / "labels.npy").unlink()
    elif damage == "other name":
        meta.write_text(meta.read_text().replace('"owner_names": []', '"owner_names": ["x"]'))
    elif damage == "header":
        content[:6] = b"broken"
        inputs.write_bytes(content)
    elif damage == "no meta":
        meta.unlink()
    else:
        meta.write_text("[]")
    with pytest.warns(UserWarning, match=f"{folder.name}: the cached data are damaged"):
        again = load("cifar10", root=root)
    np.testing.assert_array_equal(again.inputs, pixels)
    assert again.owner_names == ()


def test_leftovers_of_processes_killed_long_ago_are_swept(tmp_path: Path) -> None:
    for name, age in (("old", 10**6), ("new", 0)):
        (tmp_path / f".entry-{name}").mkdir()
        os.utime(tmp_path / f".entry-{name}", (time.time() - age,) * 2)
    cached(tmp_path / "entry", arrays)
    assert {path.name for path in tmp_path.iterdir()} == {"entry", ".entry-new"}


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


def arrays() -> Arrays:
    return Arrays(np.zeros((3, 2), np.float32), np.arange(3), None, ())


def test_entry_another_process_finished_meanwhile_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "entry"
    inode = []

    def build() -> Arrays:
        cached(folder, arrays)  # the other one is faster
        inode.append((folder / "inputs.npy").stat().st_ino)
        return arrays()

    cached(folder, build)
    assert (folder / "inputs.npy").stat().st_ino == inode[0]
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_entry_another_process_is_replacing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, replace = tmp_path / "entry", os.replace

    def replace_and_lose(source: Path, target: Path) -> None:
        replace(source, target)
        os.rename(target, tmp_path / "aside")
        threading.Timer(0.1, os.rename, (tmp_path / "aside", target)).start()

    monkeypatch.setattr(os, "replace", replace_and_lose)
    found, _ = cached(folder, arrays)
    np.testing.assert_array_equal(found.labels, np.arange(3))


def test_entry_is_as_open_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        cached(tmp_path / "entry", arrays)
    finally:
        os.umask(before)
    assert (tmp_path / "entry").stat().st_mode & 0o777 == 0o750


def test_interrupted_caching_leaves_no_half_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path / "entry", arrays)
    assert list(tmp_path.iterdir()) == []


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
