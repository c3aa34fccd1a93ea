"""Data sets in memory: inputs, labels, owners, and the scaling of inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcraft.errors import DataError, require_data

AUGMENTATIONS = ("none", "crop-flip")
_NO_VIEW = ((0.0,), (1.0,), 255.0)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples in memory (or memory-mapped), never written to.

    ``inputs`` is ``(n, channels, height, width)`` or ``(n, features)``, as uint8 or float32. A
    network sees uint8 as ``(x / scale - mean) / std`` per channel, and float32 unchanged (the three
    may not be given then). ``owners`` numbers the natural client of each sample 0, 1, ..., and
    ``owner_names`` holds their names in the source; ``class_names`` does the same for labels that
    were numbered on reading. ``fingerprint`` is the SHA-256 of the content: equal fingerprints mean
    the same samples in the same order.
    """

    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    classes: int
    name: str = "arrays"
    owners: NDArray[np.int64] | None = None
    owner_names: tuple[str, ...] = ()
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 255.0
    augmentation: str = "none"
    fingerprint: str = ""
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_inputs(self.inputs)
        _check_labels(self.labels, len(self.inputs), self.classes)
        if self.owners is not None:
            shape = self.owners.shape
            require_data(shape == (len(self),), "owners", f"shape ({len(self)},)", shape)
        _check_view(self)
        if not self.fingerprint:
            digest = fingerprint_of(self.inputs, self.labels, self.owners)
            object.__setattr__(self, "fingerprint", digest)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample: (channels, height, width) or (features,)."""
        return tuple(self.inputs.shape[1:])

    def subset(self, rows: NDArray[np.int64]) -> Dataset:
        """Return a copy of the given samples, with their owners renumbered 0, 1, ... in order."""
        owners, owner_names = self.owners, self.owner_names
        if owners is not None:
            kept, owners = np.unique(owners[rows], return_inverse=True)
            owner_names = tuple(owner_names[k] for k in kept) if owner_names else ()
        digest = hashlib.sha256(self.fingerprint.encode() + rows.tobytes()).hexdigest()
        return replace(
            self,
            inputs=self.inputs[rows],
            labels=self.labels[rows],
            owners=owners,
            owner_names=owner_names,
            fingerprint=digest,
        )


def fingerprint_of(
    inputs: NDArray[Any], labels: NDArray[np.int64], owners: NDArray[np.int64] | None
) -> str:
    """Return the SHA-256 over shapes, types and bytes of the three arrays."""
    digest = hashlib.sha256()
    for array in (inputs, labels, owners):
        if array is not None:
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def from_arrays(
    inputs: ArrayLike,
    labels: ArrayLike,
    owners: ArrayLike | None = None,
    *,
    classes: int | None = None,
    class_names: Sequence[str] = (),
    name: str = "arrays",
    channels_last: bool = False,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    scale: float = 255.0,
    augmentation: str = "none",
) -> Dataset:
    """Return a data set made of arrays.

    ``inputs`` may be uint8 (kept, and scaled batch by batch) or any other number type (converted to
    float32 and not scaled, so ``mean``, ``std`` and ``scale`` are refused with it). ``owners`` may
    hold numbers or strings. ``classes`` defaults to the largest label plus one, and ``class_names``
    may name them. Images are ``(n, c, h, w)``, or ``(n, h, w, c)`` with ``channels_last=True``.

    >>> data = from_arrays([[0.0, 1.0], [2.0, 3.0]], [0, 1], owners=["ann", "bob"])
    >>> data.input_shape, data.classes, data.owner_names
    ((2,), 2, ('ann', 'bob'))
    """
    targets = _as_labels(labels)
    names, ids = _number_owners(owners)
    return Dataset(
        inputs=_as_samples(inputs, channels_last),
        labels=targets,
        classes=int(targets.max(initial=-1)) + 1 if classes is None else classes,
        name=name,
        owners=ids,
        owner_names=names,
        class_names=tuple(class_names),
        mean=tuple(mean),
        std=tuple(std),
        scale=scale,
        augmentation=augmentation,
    )


def from_torch(dataset: Any, owners: ArrayLike | None = None, **options: Any) -> Dataset:
    """Read a map-style torch ``Dataset`` of (input, label) pairs once, in order, into memory.

    Transforms run only once: a random one is frozen at its first draw. Pillow images become uint8.
    ``options`` are those of :func:`from_arrays`.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            "dataset must be map-style (with __len__ and __getitem__), but it is a "
            f"{type(dataset).__name__}; collect it in arrays and call from_arrays"
        )
    pairs = [dataset[k] for k in range(len(dataset))]
    if not pairs:
        raise DataError("dataset is empty; a federation needs at least one sample")
    inputs = [_image_or_array(pair[0]) for pair in pairs]
    shapes = {array.shape for array in inputs}
    require_data(len(shapes) == 1, "inputs", "one shape for all", sorted(shapes)[:3])
    labels = [np.asarray(pair[1]).squeeze() for pair in pairs]
    return from_arrays(np.stack(inputs), np.stack(labels), owners, **options)


def _image_or_array(value: Any) -> NDArray[Any]:
    array = np.asarray(value)
    if not hasattr(value, "getbands"):
        return array
    return array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)


def _as_samples(inputs: ArrayLike, channels_last: bool) -> NDArray[Any]:
    array = np.asarray(inputs)
    fine = array.dtype != object and np.issubdtype(array.dtype, np.number)
    require_data(fine, "inputs", "numbers", str(array.dtype))
    if channels_last:
        require_data(array.ndim == 4, "inputs", "channels last, (n, h, w, c)", array.shape)
        array = np.moveaxis(array, -1, 1)
    return np.ascontiguousarray(array, dtype=np.uint8 if array.dtype == np.uint8 else np.float32)


def _as_labels(labels: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(labels)
    if array.size and array.dtype.kind not in "biu":
        raise DataError(
            f"labels must be integers 0, 1, ..., but all {array.size} are of type {array.dtype}; "
            "number the classes"
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def _number_owners(owners: ArrayLike | None) -> tuple[tuple[str, ...], NDArray[np.int64] | None]:
    if owners is None:
        return (), None
    array = np.asarray(owners)
    nameless = count_missing(array)
    if nameless:
        raise DataError(
            f"owners must name the client of every sample, but {nameless} of {array.size} are None,"
            " NaN or blank; name them or leave their samples out"
        )
    names, ids = np.unique(array, return_inverse=True)
    return tuple(map(str, names)), ids.astype(np.int64)


def count_missing(values: NDArray[Any]) -> int:
    """Return how many values are None, NaN, NaT, NA or blank text.

    >>> count_missing(np.array(["north", " ", None], object)), count_missing(np.array([np.nan]))
    (2, 1)
    """
    if values.dtype.kind in "OU":
        return sum(map(_is_missing, values.ravel().tolist()))
    return int(np.count_nonzero(values != values))  # only NaN and NaT differ from themselves


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    try:
        return value is None or bool(value != value)
    except TypeError:  # a comparison with pandas' NA is neither true nor false
        return True


def _check_inputs(inputs: NDArray[Any]) -> None:
    fine = inputs.ndim in (2, 4) and 0 not in inputs.shape
    shape = "samples of shape (n, features) or (n, channels, height, width)"
    require_data(fine, "inputs", shape, inputs.shape)
    fine = inputs.dtype in (np.uint8, np.float32)
    require_data(fine, "inputs", "uint8 or float32", str(inputs.dtype))
    if inputs.dtype == np.float32 and not np.isfinite(inputs).all():
        bad = int(np.flatnonzero(~np.isfinite(inputs.reshape(len(inputs), -1)).all(1))[0])
        raise DataError(f"inputs must be finite, but sample {bad} holds NaN or Inf")


def _check_labels(labels: NDArray[np.int64], samples: int, classes: int) -> None:
    require_data(labels.shape == (samples,), "labels", f"shape ({samples},)", labels.shape)
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if outside.size:
        raise DataError(
            f"labels must lie in 0..{classes - 1}, but sample {outside[0]} has label "
            f"{labels[outside[0]]} ({outside.size} samples are outside)"
        )


def _check_view(data: Dataset) -> None:
    channels = data.inputs.shape[1] if data.inputs.ndim == 4 else 1
    for name in ("mean", "std"):
        given = getattr(data, name)
        require_data(len(given) in (1, channels), name, f"1 or {channels} numbers", given)
    view = (*data.mean, *data.std, data.scale)
    fine = bool(np.isfinite(view).all()) and min(*data.std, data.scale) > 0
    require_data(fine, "mean, std and scale", "finite numbers, std and scale positive", view)
    known = data.augmentation in AUGMENTATIONS
    require_data(known, "augmentation", f"one of {AUGMENTATIONS}", data.augmentation)
    is_image = data.inputs.ndim == 4 and data.inputs.dtype == np.uint8
    if data.augmentation == "crop-flip" and not is_image:
        raise DataError("augmentation 'crop-flip' needs uint8 images of shape (n, c, h, w)")
    if data.inputs.dtype != np.uint8 and (data.mean, data.std, data.scale) != _NO_VIEW:
        raise DataError(
            "mean, std and scale are for uint8 inputs, but these are float32, which is not scaled; "
            "standardise them first"
        )
