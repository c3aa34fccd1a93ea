"""Tiny Parquet files in the Hub's layout: real PNG images of random pixels."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedcraft.data.schemas import SCHEMAS

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write_shard(path: Path, name: str, rows: int, *, seed: int = 0, **replaced: Any) -> np.ndarray:
    """Write ``rows`` random images of data set ``name``; ``replaced`` overrides columns."""
    schema = SCHEMAS[name]
    draw = np.random.default_rng(seed)
    channels, height, width = schema.shape
    pixels = draw.integers(0, 256, (rows, height, width, channels), dtype=np.uint8)
    columns: dict[str, Any] = {
        schema.image: pa.array(
            [{"bytes": png(p.squeeze(-1) if channels == 1 else p), "path": None} for p in pixels],
            IMAGE,
        ),
        schema.label: pa.array(draw.integers(0, schema.classes, rows)),
    }
    if schema.owner:
        columns[schema.owner] = pa.array([f"w{k % 4}" for k in range(rows)])
    columns |= replaced
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({k: v for k, v in columns.items() if v is not None}), path)
    return pixels.transpose(0, 3, 1, 2)


@pytest.fixture
def cifar(tmp_path: Path) -> Callable[..., tuple[Path, np.ndarray]]:
    """Return a writer of a CIFAR-10 folder: two training shards and one of test images."""

    def make(**replaced: Any) -> tuple[Path, np.ndarray]:
        folder = tmp_path / "data" / "uoft-cs" / "cifar10" / "plain_text"
        pixels = [
            write_shard(folder / "train-00000-of-00002.parquet", "cifar10", 12, seed=1),
            write_shard(folder / "train-00001-of-00002.parquet", "cifar10", 5, seed=2),
            write_shard(folder / "test-00000-of-00001.parquet", "cifar10", 4, seed=3, **replaced),
        ]
        return tmp_path / "data", np.concatenate(pixels)

    return make


@pytest.fixture(autouse=True)
def no_network_no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDCRAFT_OFFLINE", "1")
    monkeypatch.setenv("FEDCRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDCRAFT_DATA", raising=False)


@pytest.fixture
def shard() -> Callable[..., np.ndarray]:
    return write_shard
