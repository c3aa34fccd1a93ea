"""Loading of data sets by name or path."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedcraft.data.cache import cache_folder, cached, key_of
from fedcraft.data.dataset import Dataset, fingerprint_of, from_arrays
from fedcraft.data.decode import decode
from fedcraft.data.hub import parquet_files
from fedcraft.data.schemas import SCHEMAS, Schema
from fedcraft.data.table import TABLES, from_table
from fedcraft.errors import DataError, require_data
from fedcraft.registry import did_you_mean
from fedcraft.seeds import generator


@dataclass(frozen=True)
class Source:
    """A data set that :func:`load` knows by name."""

    name: str
    about: str
    classes: int
    input_shape: tuple[int, ...]
    embedded: bool
    class_names: tuple[str, ...] = ()


def sources() -> dict[str, Source]:
    """Return the data sets known by name; only the embedded ones work without files."""
    digits = Source("digits", "1,797 handwritten digits of 8 x 8 pixels", 10, (64,), True)
    images = [
        Source(s.name, s.about, s.classes, s.shape, False, s.class_names) for s in SCHEMAS.values()
    ]
    return {source.name: source for source in (digits, *images)}


def load(
    name_or_path: str | Path,
    *,
    root: str | Path | None = None,
    offline: bool | None = None,
    cache: str | Path | bool | None = None,
    **options: Any,
) -> Dataset:
    """Return a data set by its name (see :func:`sources`) or the path of a Parquet or CSV file.

    Image sets are read from ``root`` or FEDCRAFT_DATA, else from the Hub unless ``offline`` (or
    FEDCRAFT_OFFLINE, HF_HUB_OFFLINE), decoded once and cached as memory-mapped uint8 arrays in
    ``cache``, FEDCRAFT_CACHE or ``~/.cache/fedcraft``; ``cache=False`` keeps them in memory only.
    ``options`` are those of :func:`draw_writers` for ``femnist``, and of :func:`from_table` for a
    path.

    >>> digits = load("digits")
    >>> len(digits), digits.input_shape, digits.classes
    (1797, (64,), 10)
    """
    name = os.path.expanduser(str(name_or_path))
    root = root and os.path.expanduser(root)
    if name in SCHEMAS:
        _known_options(name, draw_writers if SCHEMAS[name].owner else None, options)
        dataset = _load_images(SCHEMAS[name], root, offline, cache)
        return draw_writers(dataset, **options) if SCHEMAS[name].owner else dataset
    if name == "digits":
        _known_options(name, None, options)
        return _digits()
    if Path(name).suffix in TABLES:
        _known_options(name, from_table, options)
        return from_table(name, **options)
    raise unknown_dataset(name)


def unknown_dataset(name: str) -> DataError:
    """Return the error about a name that is neither a data set's nor the path of a table."""
    return DataError(
        f"dataset: unknown name {name!r}.{did_you_mean(name, sources())} Known: "
        f"{', '.join(sources())}, or the path of a {' or '.join(TABLES)} file."
    )


def draw_writers(
    dataset: Dataset, *, clients: int | None = 1000, max_samples: int = 500, seed: int = 0
) -> Dataset:
    """Keep ``clients`` (None: all) of the writers with at most ``max_samples``, drawn uniformly."""
    if dataset.owners is None:
        raise DataError(f"data set {dataset.name!r} names no owners to draw from")
    sizes = np.bincount(dataset.owners)
    eligible = np.flatnonzero((sizes > 0) & (sizes <= max_samples))
    wanted = eligible.size if clients is None else clients
    most = f"1 to {eligible.size}, the number of writers with at most {max_samples} samples"
    require_data(1 <= wanted <= eligible.size, "clients", most, wanted)
    chosen = generator(seed, "writers").choice(eligible, wanted, replace=False)
    rows = np.flatnonzero(np.isin(dataset.owners, chosen))
    # The whole set keeps its memory map; a subset is a copy.
    return dataset if rows.size == len(dataset) else dataset.subset(rows)


def _known_options(
    name: str, taker: Callable[..., Dataset] | None, options: dict[str, Any]
) -> None:
    parameters = inspect.signature(taker).parameters.values() if taker else ()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    foreign = sorted(set(options) - set(known))
    if foreign:
        raise DataError(f"data set {name!r} takes the options {known}, but got {foreign}")


def _digits() -> Dataset:
    """Read scikit-learn's file; importing scikit-learn would take every process a second."""
    package = find_spec("sklearn")
    folder = Path(package.origin).parent if package and package.origin else Path()
    rows = np.loadtxt(folder / "datasets" / "data" / "digits.csv.gz", np.uint8, delimiter=",")
    images, labels = rows[:, :-1], rows[:, -1].astype(np.int64)
    return from_arrays(images, labels, name="digits", mean=(0.3053,), std=(0.3760,), scale=16.0)


def _load_images(
    schema: Schema, root: str | Path | None, offline: bool | None, cache: str | Path | bool | None
) -> Dataset:
    files = parquet_files(schema, root, offline)
    folder = cache_folder(cache)
    if folder is None:
        arrays = decode(files, schema)
        fingerprint = fingerprint_of(*arrays[:3])
    else:
        entry = folder / key_of(schema.name, files)
        arrays, fingerprint = cached(entry, lambda: decode(files, schema))
    return Dataset(
        inputs=arrays.inputs,
        labels=arrays.labels,
        classes=schema.classes,
        name=schema.name,
        owners=arrays.owners,
        owner_names=arrays.owner_names,
        class_names=schema.class_names,
        mean=schema.mean,
        std=schema.std,
        augmentation=schema.augmentation,
        fingerprint=fingerprint,
    )
