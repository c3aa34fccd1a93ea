"""Federations: a data set, and the samples that each client trains and is tested on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedcraft.atomic import write_atomically
from fedcraft.data import splitfile
from fedcraft.data.batches import Tensors, tensors_of
from fedcraft.data.dataset import Dataset
from fedcraft.data.partition import make_partition
from fedcraft.data.ragged import Ragged
from fedcraft.errors import DataError, require_data
from fedcraft.seeds import generator

SPLITS = ("train", "test", "validation")
_ARRAYS = [(split, half) for split in SPLITS for half in ("indices", "pointers")]
# Up to this size a float32 copy made in advance is cheap; a larger one costs more seconds at the
# start than it saves during a run (13 microseconds per client on FEMNIST).
_AHEAD_MB = 64.0


@dataclass(frozen=True, eq=False)
class Client:
    """The sample numbers of one client; its tensors are made on request."""

    id: int
    dataset: Dataset
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    validation: NDArray[np.int64]

    def tensors(self, split: str = "train") -> tuple[Tensor, Tensor]:
        """Return (scaled float32 inputs, labels) of one split."""
        rows: NDArray[np.int64] = getattr(self, _split_name(split))
        return tensors_of(self.dataset, ahead_mb=0).gather(rows)


@dataclass(frozen=True, eq=False)
class Federation:
    """The data set and, per client, its training, test and validation samples.

    The sample numbers are a :class:`Ragged` per split, so evaluating all clients is one pass over
    ``test.indices`` cut at ``test.pointers``. ``clients`` may exceed ``len(train)``: see
    :meth:`virtual`. ``moved`` counts the samples that the partitioner moved to small clients.
    """

    dataset: Dataset
    train: Ragged
    test: Ragged
    validation: Ragged
    clients: int = 0
    moved: int = 0

    def __post_init__(self) -> None:
        if not self.clients:
            object.__setattr__(self, "clients", len(self.train))
        _check_parts(self)

    def __len__(self) -> int:
        return self.clients

    @property
    def base_clients(self) -> int:
        """The number of clients that do not share their data with an earlier one."""
        return len(self.train)

    def client(self, client: int) -> Client:
        """Return the view of one client, without copying a sample."""
        return Client(client, self.dataset, *(self.rows(client, split) for split in SPLITS))

    def rows(self, client: int, split: str = "train") -> NDArray[np.int64]:
        """Return the sample numbers of one client's split."""
        known = 0 <= client < self.clients
        require_data(known, "client", f"0 to {self.clients - 1}", client)
        return self._part(split)[client % self.base_clients]

    def sizes(self, split: str = "train") -> NDArray[np.int64]:
        """Return how many samples of the split each client has."""
        return np.resize(self._part(split).sizes, self.clients)

    def weights(self) -> NDArray[np.float64]:
        """Return rho_i = training samples of client i / all training samples."""
        sizes = self.sizes().astype(np.float64)
        sizes /= sizes.sum()
        return sizes

    def label_counts(self, split: str = "train") -> NDArray[np.int64]:
        """Return the (clients, classes) table of how often each client has each label."""
        part = self._part(split)
        cells = part.rows * self.dataset.classes + self.dataset.labels[part.indices]
        shape = (self.base_clients, self.dataset.classes)
        counts = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
        return counts[np.arange(self.clients) % self.base_clients]

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """The name of the owner behind each client; empty if clients are not owners."""
        owners, names = self.dataset.owners, self.dataset.owner_names
        if owners is None or not names:
            return ()
        first = owners[self.train.indices[self.train.pointers[:-1]]]
        mixed = (owners[self.train.indices] != first[self.train.rows]).any()
        if mixed or np.unique(first).size < first.size:
            return ()
        return tuple(names[k] for k in np.resize(first, self.clients))

    def tensors(self, *, ahead_mb: float = _AHEAD_MB) -> Tensors:
        """Return the whole data set as tensors, scaled ahead if that takes at most ``ahead_mb``."""
        return tensors_of(self.dataset, ahead_mb)

    def virtual(self, clients: int) -> Federation:
        """Return a federation of ``clients`` clients in which client i has the data of i mod N.

        It takes no more memory than the N clients behind it.
        """
        require_data(clients >= 1, "clients", "at least 1", clients)
        return replace(self, clients=clients)

    @cached_property
    def split_hash(self) -> str:
        """SHA-256 over the data set's fingerprint, the number of clients and every index array."""
        digest = hashlib.sha256(f"{self.dataset.fingerprint}:{self.clients}".encode())
        for array in self.arrays().values():
            digest.update(f":{array.size}:".encode())
            digest.update(np.ascontiguousarray(array, dtype="<i8").data)
        return digest.hexdigest()

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """Return the six index arrays by name, in the order of the hash."""
        return {f"{split}_{half}": getattr(self._part(split), half) for split, half in _ARRAYS}

    def save(self, path: str | Path) -> Path:
        """Write the split (not the data) as ``.npz``, atomically, with its hash; no pickle."""
        write_atomically(Path(path), self.split_file())
        return Path(path)

    def split_file(self) -> bytes:
        """Return what :meth:`save` writes."""
        about = {
            "hash": self.split_hash,
            "dataset": self.dataset.name,
            "fingerprint": self.dataset.fingerprint,
            "clients": self.clients,
            "moved": self.moved,
        }
        return splitfile.encode(self.arrays(), about)

    @classmethod
    def load(cls, path: str | Path, dataset: Dataset) -> Federation:
        """Read a saved split for ``dataset``; another data set or a changed file is an error."""
        arrays, about = splitfile.read(Path(path))
        if about["fingerprint"] != dataset.fingerprint:
            raise DataError(
                f"{path} was made for data set {about['dataset']!r} with fingerprint "
                f"{about['fingerprint'][:12]}, but the given {dataset.name!r} has "
                f"{dataset.fingerprint[:12]}; load the same data"
            )
        wanted = [f"{split}_{half}" for split, half in _ARRAYS]
        if arrays.keys() != set(wanted):
            raise DataError(f"{path} must hold the arrays {wanted}, but it holds {sorted(arrays)}")
        train, test, validation = (
            Ragged(arrays[f"{split}_indices"], arrays[f"{split}_pointers"]) for split in SPLITS
        )
        federation = cls(dataset, train, test, validation, about["clients"], about["moved"])
        if federation.split_hash != about["hash"]:
            raise DataError(f"{path} is damaged: its index arrays do not match its own hash")
        return federation

    def _part(self, split: str) -> Ragged:
        part: Ragged = getattr(self, _split_name(split))
        return part


def federate(
    dataset: Dataset,
    partitioner: str = "dirichlet",
    clients: int | None = None,
    *,
    seed: int = 0,
    train_fraction: float = 0.8,
    validation_fraction: float = 0.0,
    **params: Any,
) -> Federation:
    """Partition ``dataset`` over clients and split each client's samples at random.

    The training part holds floor(train_fraction * n) samples, at least 1; the others are the test
    part (empty for a client with a single sample). The validation part is ``validation_fraction``
    of the training part, rounded down, so at least one sample is left to train on. ``params`` go to
    the partitioner.
    """
    made = make_partition(dataset, partitioner, clients, seed=seed, **params)
    require_data(0 < train_fraction <= 1, "train_fraction", "a share in (0, 1]", train_fraction)
    fine = 0 <= validation_fraction < 1
    require_data(fine, "validation_fraction", "a share in [0, 1)", validation_fraction)
    order = generator(seed, "split").permutation(made.clients.indices.size)
    places = Ragged.from_owners(made.clients.rows, len(made), order)
    mixed = Ragged(made.clients.indices[places.indices], made.clients.pointers)
    train, test = mixed.head(np.maximum(_floor(train_fraction, mixed.sizes), 1))
    train, validation = train.head(train.sizes - _floor(validation_fraction, train.sizes))
    return Federation(dataset, train, test, validation, moved=made.moved)


def _floor(fraction: float, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    # 0.29 * 100 is 28.999...96 in float64; the promise is floor of the decimal product.
    floors: NDArray[np.int64] = np.floor(fraction * sizes + 1e-9).astype(np.int64)
    return floors


def _split_name(name: str) -> str:
    require_data(name in SPLITS, "split", f"one of {SPLITS}", name)
    return name


def _check_parts(federation: Federation) -> None:
    parts = [federation.train, federation.test, federation.validation]
    if len({len(part) for part in parts}) != 1 or not len(federation.train):
        raise DataError(
            "train, test and validation must have one row per client and at least one client, "
            f"but they have {[len(part) for part in parts]}"
        )
    empty = np.flatnonzero(federation.train.sizes == 0)
    if empty.size:
        raise DataError(f"client {empty[0]} has no training sample ({empty.size} clients in all)")
    samples = len(federation.dataset)
    for part in parts:
        if part.indices.size and not 0 <= part.indices.min() <= part.indices.max() < samples:
            raise DataError(f"sample numbers must lie in 0..{samples - 1}")
