"""The run directory: tables anyone can read, and everything a resumed run needs."""

from __future__ import annotations

import csv
import io
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from fedcraft.data import Federation
from fedcraft.engine.checkpoint import Checkpoints
from fedcraft.engine.files import read_json, write_atomically, write_json
from fedcraft.engine.fleet import Scores
from fedcraft.engine.lock import Lock
from fedcraft.engine.tables import CsvTable, JsonLines, Table

__all__ = ["RunDirectory", "environment"]

_CLIENTS = ("round", "client", "split", "metric", "value", "n")
_CONFLICTS = (
    "round", "layer", "min_cosine", "mean_cosine", "conflicts_average", "conflicts_reference",
    "conflicts_after", "residual", "rank", "active", "correction_norm",
)  # fmt: skip


class RunDirectory:
    """The files of one run; a lock keeps a second one out."""

    def __init__(self, path: Path, *, keep_checkpoints: int = 2) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints", keep_checkpoints)
        self._status: dict[str, Any] = {}
        path.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(path)
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> None:
        self.metrics = JsonLines(self.path / "metrics.jsonl")
        self.clients = CsvTable(self.path / "clients.csv", _CLIENTS)
        self.conflicts = CsvTable(self.path / "conflicts.csv", _CONFLICTS)
        self._log = Table(self.path / "log.txt")

    @property
    def states(self) -> Path:
        """Where the clients' states lie."""
        return self.path / "states"

    @property
    def used(self) -> bool:
        """Tell whether a run has written here before."""
        return self.metrics.size > 0 or (self.path / "status.json").exists()

    def begin(self, federation: Federation, about: Mapping[str, Any]) -> None:
        """Write what does not change: split, labels, environment, and who and what is numbered."""
        write_json(self.path / "environment.json", {**environment(), **about})
        federation.save(self.path / "split.npz")
        self._write_labels(federation)
        self._write_names("owners.csv", "client", federation.client_names)
        self._write_names("classes.csv", "label", federation.dataset.class_names)

    def sync(self) -> dict[str, int]:
        """Force the tables to the disk and return their sizes."""
        return {name: table.sync() for name, table in self._tables().items()}

    def cut(self, sizes: Mapping[str, int] | None) -> None:
        """Take the tables back to the sizes of a checkpoint, or to nothing."""
        for name, table in self._tables().items():
            table.cut(None if sizes is None else sizes[name])

    def write_scores(self, round_number: int, scores: Mapping[str, Scores]) -> None:
        """Append one evaluation to clients.csv."""
        for split, score in scores.items():
            columns = (score.clients.tolist(), score.samples.tolist())
            for metric in ("accuracy", "loss"):
                values = getattr(score, metric).tolist()
                self.clients.rows(
                    (round_number, client, split, metric, value, n)
                    for client, n, value in zip(*columns, values, strict=True)
                )

    def write_certificate(self, round_number: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append one certificate to conflicts.csv."""
        self.conflicts.rows([round_number, *(row[c] for c in _CONFLICTS[1:])] for row in rows)

    def status(self, **fields: Any) -> None:
        """Update status.json."""
        self._status.update(fields, updated=time.strftime("%Y-%m-%dT%H:%M:%S%z"))
        write_json(self.path / "status.json", self._status, durable=False)

    def read_status(self) -> dict[str, Any]:
        """Return the status that an earlier process left, empty if there is none."""
        path = self.path / "status.json"
        status: dict[str, Any] = read_json(path) if path.exists() else {}
        return status

    def save_model(self, tensors: Mapping[str, Tensor]) -> Path:
        """Write the final model by parameter and buffer name."""
        path = self.path / "model.safetensors"
        write_atomically(path, save({name: t.clone() for name, t in tensors.items()}))
        return path

    def log(self, message: str) -> None:
        """Append a dated line to log.txt."""
        self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")

    def close(self) -> None:
        """Close the files and let others in, even if some cannot be closed in order."""
        with ExitStack() as stack:
            stack.callback(self._lock.release)
            for table in (*self._tables().values(), self._log):
                stack.callback(table.close)

    def _tables(self) -> dict[str, Table]:
        return {"metrics": self.metrics, "clients": self.clients, "conflicts": self.conflicts}

    def _write_labels(self, federation: Federation) -> None:
        path = self.path / "labels.csv"
        counts = federation.virtual(federation.base_clients).label_counts()
        clients, labels = np.nonzero(counts)
        triples = zip(clients.tolist(), labels.tolist(), counts[clients, labels], strict=True)
        text = "client,label,count\n" + "".join(f"{c},{k},{n}\n" for c, k, n in triples)
        write_atomically(path, text.encode())

    def _write_names(self, file: str, number: str, names: Sequence[str]) -> None:
        if not names:
            return
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([(number, "name"), *enumerate(names)])
        write_atomically(self.path / file, text.getvalue().encode())


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
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
