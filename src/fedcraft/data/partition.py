"""The partitioners, which divide the samples of a data set among clients.

Each of them gives every sample to exactly one client (``natural`` leaves owners out if fewer
clients are wanted than there are owners). All of them terminate, and none leaves a client without
samples: a request that cannot be met raises a :class:`DataError` before the first draw.
"""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcraft.data.dataset import Dataset
from fedcraft.data.ragged import Ragged
from fedcraft.errors import DataError, require_data
from fedcraft.registry import did_you_mean
from fedcraft.seeds import generator

Owners = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of each client, and how many samples the repair of small clients moved."""

    clients: Ragged
    moved: int = 0

    def __len__(self) -> int:
        return len(self.clients)


def dirichlet(
    labels: ArrayLike, clients: int, alpha: float = 0.1, *, min_size: int = 20, seed: int = 0
) -> Partition:
    """Split each label over the clients in Dirichlet proportions (paper, Section 5).

    For each class k: p ~ Dir(alpha * 1_N), and the shuffled samples of the class are cut at
    floor(cumsum(p) * n_k). Then clients below ``min_size`` get samples one by one, always from the
    client that is largest at that moment. Cost: O(n log n) and one heap operation per moved sample;
    1,000 clients on 60,000 samples take some tens of milliseconds.

    >>> split = dirichlet(np.repeat(np.arange(10), 100), clients=20, alpha=0.1, min_size=20)
    >>> int(split.clients.sizes.min()), split.clients.indices.size
    (20, 1000)
    """
    targets = _checked(labels, clients, min_size)
    require_data(0 < alpha < np.inf, "alpha", "a positive number", alpha)
    draw = generator(seed, "partition-dirichlet")
    owners = np.empty(targets.size, np.int64)
    for label in np.unique(targets):
        samples = draw.permutation(np.flatnonzero(targets == label))
        shares = draw.dirichlet(np.full(clients, alpha))
        owners[samples] = _cut(shares, samples.size)
    return _repaired(owners, clients, min_size, draw.permutation(targets.size))


def iid(labels: ArrayLike, clients: int, *, seed: int = 0) -> Partition:
    """Deal the shuffled samples out evenly; sizes differ by at most one."""
    targets = _checked(labels, clients, 1)
    order = generator(seed, "partition-iid").permutation(targets.size)
    return Partition(Ragged.from_rows(np.array_split(order, clients)))


def shards(
    labels: ArrayLike, clients: int, *, shards_per_client: int = 2, seed: int = 0
) -> Partition:
    """Sort by label, cut into equal shards, deal ``shards_per_client`` to each (McMahan 2017)."""
    require_data(shards_per_client >= 1, "shards_per_client", "at least 1", shards_per_client)
    targets = _checked(labels, clients, shards_per_client)
    draw = generator(seed, "partition-shards")
    shuffled = draw.permutation(targets.size)
    by_label = shuffled[np.argsort(targets[shuffled], kind="stable")]
    pieces = np.array_split(by_label, clients * shards_per_client)
    dealt = draw.permutation(len(pieces)).reshape(clients, shards_per_client)
    return Partition(Ragged.from_rows([np.concatenate([pieces[k] for k in row]) for row in dealt]))


def quantity(
    labels: ArrayLike, clients: int, alpha: float = 0.5, *, min_size: int = 20, seed: int = 0
) -> Partition:
    """Give clients unequal sizes, in proportions p ~ Dir(alpha * 1_N), and the same label mix."""
    targets = _checked(labels, clients, min_size)
    require_data(0 < alpha < np.inf, "alpha", "a positive number", alpha)
    draw = generator(seed, "partition-quantity")
    order = draw.permutation(targets.size)
    owners = np.empty(targets.size, np.int64)
    owners[order] = _cut(draw.dirichlet(np.full(clients, alpha)), targets.size)
    return _repaired(owners, clients, min_size, order)


def natural(owners: ArrayLike, clients: int | None = None, *, seed: int = 0) -> Partition:
    """Make each owner a client; draw ``clients`` of them uniformly if there are more."""
    ids = np.asarray(owners, dtype=np.int64)
    _not_empty(ids.size)
    names = np.unique(ids)
    wanted = names.size if clients is None else clients
    fine = 1 <= wanted <= names.size
    require_data(fine, "clients", f"1 to {names.size}, the number of owners", wanted)
    draw = generator(seed, "partition-natural")
    chosen = np.sort(draw.choice(names, wanted, replace=False)) if wanted < names.size else names
    kept = np.flatnonzero(np.isin(ids, chosen))
    rows = Ragged.from_owners(np.searchsorted(chosen, ids[kept]), wanted, np.arange(kept.size))
    return Partition(Ragged(kept[rows.indices], rows.pointers))


_PARTITIONERS: dict[str, Callable[..., Partition]] = {
    "dirichlet": dirichlet,
    "iid": iid,
    "natural": natural,
    "quantity": quantity,
    "shards": shards,
}


def partitioners() -> dict[str, dict[str, Any]]:
    """Return the parameters of each partitioner and their defaults, without clients and seed."""
    return {
        name: {
            parameter.name: parameter.default
            for parameter in inspect.signature(rule).parameters.values()
            if parameter.name not in ("labels", "owners", "clients", "seed")
        }
        for name, rule in _PARTITIONERS.items()
    }


def make_partition(
    dataset: Dataset, name: str, clients: int | None = None, *, seed: int = 0, **params: Any
) -> Partition:
    """Split ``dataset`` by the partitioner ``name``; only natural works without ``clients``."""
    if name not in _PARTITIONERS:
        raise DataError(
            f"unknown partitioner {name!r}; there are {', '.join(sorted(_PARTITIONERS))}."
            f"{did_you_mean(name, _PARTITIONERS)}"
        )
    rule, taken = _PARTITIONERS[name], partitioners()[name]
    foreign = sorted(params.keys() - taken.keys())
    if foreign:
        raise DataError(f"partitioner {name!r} takes {list(taken)}, but got {foreign}")
    if rule is natural:
        if dataset.owners is None:
            raise DataError(f"data set {dataset.name!r} names no owners; 'natural' needs them")
        return natural(dataset.owners, clients, seed=seed)
    if clients is None:
        raise DataError(f"partitioner {name!r} needs the number of clients")
    return rule(dataset.labels, clients, seed=seed, **params)


def _cut(shares: NDArray[np.float64], samples: int) -> Owners:
    """Return the owner of each of ``samples`` items cut at floor(cumsum(shares) * samples)."""
    cuts = np.floor(np.cumsum(shares)[:-1] * samples).astype(np.int64)
    counts = np.diff(np.concatenate([[0], np.minimum(cuts, samples), [samples]]))
    return np.repeat(np.arange(shares.size), counts)


def _repaired(owners: Owners, clients: int, min_size: int, order: Owners) -> Partition:
    """Fill clients below ``min_size`` from the client that is largest, the first one on a tie."""
    sizes = np.bincount(owners, minlength=clients)
    small = np.flatnonzero(sizes < min_size)
    if not small.size:
        return Partition(Ragged.from_owners(owners, clients, order))
    held = [list(row) for row in Ragged.from_owners(owners, clients, order)]
    largest = [(-int(size), client) for client, size in enumerate(sizes) if size > min_size]
    heapq.heapify(largest)
    moved = 0
    for client in small:
        while len(held[client]) < min_size:
            size, donor = largest[0]
            held[client].append(held[donor].pop())
            heapq.heapreplace(largest, (size + 1, donor))
            moved += 1
    return Partition(Ragged.from_rows([np.array(row, np.int64) for row in held]), moved)


def _checked(labels: ArrayLike, clients: int, min_size: int) -> NDArray[np.int64]:
    targets = np.asarray(labels, dtype=np.int64)
    _not_empty(targets.size)
    require_data(clients >= 1, "clients", "at least 1", clients)
    require_data(min_size >= 1, "min_size", "at least 1", min_size)
    if clients * min_size > targets.size:
        raise DataError(
            f"{clients} clients of at least {min_size} samples need {clients * min_size} samples, "
            f"but there are {targets.size}; lower clients or min_size"
        )
    return targets


def _not_empty(samples: int) -> None:
    if samples == 0:
        raise DataError("the data set is empty; a federation needs at least one sample")
