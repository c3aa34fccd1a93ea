"""Batches of a data set as tensors: one gather, one crop and one scaling per epoch.

There is no DataLoader: an epoch of a client is one ``index_select`` in shuffled order, and its
batches are slices of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcraft.data.dataset import Dataset
from fedcraft.updates.reading import array_view

_PADDING = 4
_CHUNK = 4096


@dataclass(frozen=True, eq=False)
class Normalisation:
    """(x / scale - mean) / std per channel, as ``x * gain - shift``: two passes, not three."""

    gain: Tensor
    shift: Tensor

    @classmethod
    def of(cls, mean: Sequence[float], std: Sequence[float], scale: float) -> Normalisation:
        """Compute gain and shift in float64, one pair per channel."""
        means, stds = np.broadcast_arrays(np.asarray(mean, float), np.asarray(std, float))
        shape = (means.size, 1, 1) if means.size > 1 else ()
        gain, shift = 1.0 / (scale * stds), means / stds
        return cls(*(torch.tensor(v.reshape(shape), dtype=torch.float32) for v in (gain, shift)))

    def to(self, device: torch.device) -> Normalisation:
        """Return the same numbers on a device."""
        return Normalisation(self.gain.to(device), self.shift.to(device))

    def __call__(self, inputs: Tensor) -> Tensor:
        return inputs.to(torch.float32).mul_(self.gain).sub_(self.shift)


def crop_flip(
    images: Tensor,
    draw: np.random.Generator,
    place: Callable[[Tensor], Tensor] = lambda index: index,
) -> Tensor:
    """Crop each image at random after padding it by 4 black pixels, then mirror half of them.

    ``images`` is the whole stack ``(n, c, h, w)``; the draws depend on ``draw`` and ``n`` only.
    ``place`` moves an index to the device of the images.
    """
    count, channels, height, width = images.shape
    corners = torch.from_numpy(draw.integers(0, 2 * _PADDING + 1, (2, count, 1, 1)))
    mirrored = torch.from_numpy(np.flatnonzero(draw.random(count) < 0.5))
    padded = torch.nn.functional.pad(images, [_PADDING] * 4)
    tall, wide = padded.shape[2:]
    # Every run of `width` pixels is a row of one overlapping view, so that all crops are a single
    # index_select of whole runs: 0.5 microseconds an image, where fancy indexing takes 4.
    planes = torch.arange(count * channels).view(count, channels, 1) * (tall * wide)
    starts = planes + (corners[0] + torch.arange(height)) * wide + corners[1]
    starts, mirrored = place(starts.flatten()), place(mirrored)
    runs = padded.view(-1).unfold(0, width, 1).index_select(0, starts)
    crops = runs.view(images.shape)
    crops[mirrored] = crops[mirrored].flip(-1)
    return crops


@dataclass(frozen=True, eq=False)
class Tensors:
    """All samples as two tensors, from which batches are gathered by sample number.

    ``inputs`` is uint8 and scaled when gathered, or float32 and ready (``normalise`` is then None).
    Both give the same bits. The tensors may share memory with the data set: never write to them.
    """

    inputs: Tensor
    labels: Tensor
    normalise: Normalisation | None = None
    augmentation: str = "none"
    device: torch.device | None = None  # None for the CPU

    def __len__(self) -> int:
        return len(self.labels)

    def gather(self, rows: NDArray[np.int64] | Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples ``rows`` as (float32 inputs, labels), in that order, unaugmented."""
        index = self._here(rows if isinstance(rows, Tensor) else array_view(rows))
        return self._ready(self.inputs.index_select(0, index)), self.labels.index_select(0, index)

    def epoch(self, rows: NDArray[np.int64], draw: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return the samples ``rows`` shuffled and augmented by ``draw``: slice it into batches."""
        index = self._here(torch.from_numpy(draw.permutation(rows)))
        inputs = self.inputs.index_select(0, index)
        if self.augmentation == "crop-flip":
            inputs = crop_flip(inputs, draw, self._here)
        return self._ready(inputs), self.labels.index_select(0, index)

    def to(self, device: torch.device) -> Tensors:
        """Return all samples on a device, where batches are then gathered."""
        if device.type == "cpu":
            return self
        normalise = None if self.normalise is None else self.normalise.to(device)
        samples = self.inputs.to(device), self.labels.to(device)
        return Tensors(*samples, normalise, self.augmentation, device)

    def _here(self, index: Tensor) -> Tensor:
        return index if self.device is None else index.to(self.device)

    def _ready(self, inputs: Tensor) -> Tensor:
        return inputs if self.normalise is None else self.normalise(inputs)


def tensors_of(dataset: Dataset, ahead_mb: float) -> Tensors:
    """Return the data set as tensors, scaled ahead if the float32 copy fits in ``ahead_mb``.

    Augmented data stay uint8: the padding of a crop is black before it is scaled.
    """
    inputs, labels = array_view(dataset.inputs), array_view(dataset.labels)
    if inputs.dtype == torch.float32:
        return Tensors(inputs, labels)
    normalise = Normalisation.of(dataset.mean, dataset.std, dataset.scale)
    if dataset.augmentation != "none" or 4 * inputs.numel() > ahead_mb * 2**20:
        return Tensors(inputs, labels, normalise, dataset.augmentation)
    ready = torch.empty(inputs.shape, dtype=torch.float32)
    for start in range(0, len(inputs), _CHUNK):
        ready[start : start + _CHUNK] = normalise(inputs[start : start + _CHUNK])
    return Tensors(ready, labels)
