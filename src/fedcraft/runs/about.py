"""The files that describe a run: the machine, the split of the data, names and labels."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from fedcraft.data import Federation
from fedcraft.runs.tables import csv_text

_PROCESSOR = ("processor", "torch_capability", "arithmetic")


def environment() -> dict[str, Any]:
    """Describe the machine and the libraries a run depends on."""
    packages = ("fedcraft", "torch", "numpy", "scipy", "safetensors")
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "packages": {name: version(name) for name in packages},
        "torch_capability": torch.backends.cpu.get_cpu_capability(),
        "arithmetic": _arithmetic(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _arithmetic() -> str:
    """Return a digest of some products and sums, to detect a processor that rounds differently."""
    rows = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    images = rows.view(8, 8, 32, 32)
    results = (rows @ rows.T, functional.conv2d(images, images[:, :, :3, :3]), rows.log_softmax(1))
    return hashlib.sha256(b"".join(found.numpy().tobytes() for found in results)).hexdigest()[:16]


def rounding_differences(then: bytes, now: Mapping[str, Any]) -> list[str]:
    """Return the changes since ``environment.json`` that can affect the last bits of a result."""
    try:
        before = _rounding(json.loads(then))
    except (ValueError, AttributeError) as error:  # of a run that has no seal
        return [f"environment.json cannot be read ({error})"]
    return [
        f"{name} was {before[name]}, is {value}"
        for name, value in _rounding(now).items()
        if before[name] not in (None, value)  # fedcraft 0.1.0 kept fewer of them
    ]


def _rounding(environment: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: environment.get(name) for name in _PROCESSOR}
    packages = environment.get("packages", {})
    return named | {name: packages.get(name) for name in ("fedcraft", "torch", "numpy", "scipy")}


def federation_files(federation: Federation) -> dict[str, bytes]:
    """Return the files about the clients: split, label counts, and names if the data have any."""
    files = {"split.npz": federation.split_file(), "labels.csv": _labels(federation)}
    if federation.client_names:
        files["owners.csv"] = _named("client", enumerate(federation.client_names))
    if federation.dataset.class_names:
        files["classes.csv"] = _named("label", enumerate(federation.dataset.class_names))
    return files


def layer_file(names: Mapping[str, str]) -> dict[str, bytes]:
    """Return the file that says what to call the layers of a model."""
    return {"layers.csv": _named("layer", names.items())}


def _labels(federation: Federation) -> bytes:
    counts = federation.virtual(federation.base_clients).label_counts()
    clients, labels = np.nonzero(counts)
    triples = zip(clients, labels, counts[clients, labels], strict=True)
    return csv_text([("client", "label", "count"), *triples]).encode()


def _named(key: str, names: Iterable[tuple[object, str]]) -> bytes:
    return csv_text([(key, "name"), *names]).encode()
