"""Small data sets in the Hub's Parquet layout: random images, so that no test needs a download."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcraft.config.schema import Config
from fedcraft.config.toml import config_text
from fedcraft.runs import Run
from fedcraft.runs.directory import place_config
from fedcraft.studies.plan import run_id

IMAGES = 320
WRITERS = 16


def png(pixels: np.ndarray) -> dict[str, object]:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def write(folder: Path, split: str, columns: dict[str, list[object]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{split}-00000-of-00001.parquet")


def write_cifar(root: Path, name: str, folder: str, label: str, classes: int) -> None:
    draw = np.random.default_rng(classes)
    for split, count in (("train", IMAGES - 40), ("test", 40)):
        pixels = draw.integers(0, 256, (count, 32, 32, 3), np.uint8)
        labels = [int(k) for k in draw.integers(0, classes, count)]
        write(root / "uoft-cs" / name / folder, split, {"img": [*map(png, pixels)], label: labels})


def write_femnist(root: Path) -> None:
    draw = np.random.default_rng(62)
    pixels = draw.integers(0, 256, (IMAGES, 28, 28), np.uint8)
    columns = {
        "image": [*map(png, pixels)],
        "writer_id": [f"writer-{k % WRITERS}" for k in range(IMAGES)],
        "character": [int(k) for k in draw.integers(0, 62, IMAGES)],
    }
    write(root / "flwrlabs" / "femnist" / "data", "train", columns)


def prepare(config: Config, directory: Path) -> Path:
    """Make a run directory with its configuration, for a run that starts later."""
    place_config(directory, config_text(config))
    return directory


def write_result(
    folder: Path,
    mean: float | None = 0.5,
    *,
    state: str = "finished",
    reached: int | None = None,
    reason: str = "",
    validation: float | None = None,
    **keys: Any,
) -> Run:
    """Write a run that was never trained; without a mean it was never evaluated."""
    config = Config.model_validate({"executor": "serial", "workers": 1} | keys)
    directory = prepare(config, folder / run_id(config))
    last = config.rounds if reached is None else reached
    status = {"state": state, "round": last, "reason": reason, "split_hash": "split"}
    (directory / "status.json").write_text(json.dumps(status))
    scores = {"mean": mean, "best10": mean, "worst10": mean, "std": 0.1}
    scores |= {} if validation is None else {"validation_mean": validation}
    record = {"round": last, "conflicts": {"average": 2, "reference": 1, "after": 1}}
    record |= {} if mean is None else {"evaluation": scores}
    (directory / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    return Run(directory)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny stand-ins for FEMNIST, CIFAR-10 and CIFAR-100."""
    root = tmp_path_factory.mktemp("data")
    write_femnist(root)
    write_cifar(root, "cifar10", "plain_text", "label", 10)
    write_cifar(root, "cifar100", "cifar100", "fine_label", 100)
    return root


@pytest.fixture
def offline(
    data_root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Nothing but the stand-ins can be read."""
    monkeypatch.setenv("FEDCRAFT_DATA", str(data_root))
    monkeypatch.setenv("FEDCRAFT_OFFLINE", "1")
    monkeypatch.setenv("FEDCRAFT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    return data_root
