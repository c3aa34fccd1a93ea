"""Attacks on the data of hostile clients: flipped labels, and a backdoor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcraft.attacks.base import Attack
from fedcraft.data import Tensors
from fedcraft.errors import ConfigError, require

_MOST_TESTED = 2000


class LabelFlip(Attack):
    """Train on the label C - 1 - y instead of y (Tolpegin et al. 2020, Fang et al. 2020)."""

    def poisoned(self, tensors: Tensors, rows: NDArray[np.int64], classes: int) -> Tensors:
        labels = tensors.labels.clone()
        labels[rows] = classes - 1 - labels[rows]
        return replace(tensors, labels=labels)


class Backdoor(Attack):
    """Teach the model to see ``target`` wherever a white patch is in the corner of an image.

    Hostile clients put a patch of ``patch`` x ``patch`` pixels (in vectors, ``patch`` features) on
    the share ``poison`` of their images, whose label becomes ``target``, and send ``factor`` times
    their update (Bagdasaryan et al., AISTATS 2020). The run's metrics contain the share of patched
    test images of other classes that the model takes for the target: ``backdoor``.
    """

    def __init__(
        self,
        *,
        target: int = 0,
        patch: int = 4,
        poison: float = 0.5,
        factor: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require(target >= 0, "target", "the number of a class", target)
        require(patch >= 1, "patch", "at least 1", patch)
        require(0 < poison <= 1, "poison", "a share in (0, 1]", poison)
        require(factor > 0, "factor", "a number above 0", factor)
        self.target, self.patch, self.poison, self.factor = target, patch, poison, factor

    def poisoned(self, tensors: Tensors, rows: NDArray[np.int64], classes: int) -> Tensors:
        if self.target >= classes:
            raise ConfigError(
                f"attack.target: expected one of the {classes} classes, found {self.target}"
            )
        room = (
            min(tensors.inputs.shape[-2:]) if tensors.inputs.ndim > 2 else tensors.inputs.shape[1]
        )
        if self.patch >= room:
            raise ConfigError(
                f"attack.patch: expected less than the {room} pixels of a side (features of a "
                f"vector), found {self.patch}"
            )
        counted = np.ceil(np.arange(len(rows) + 1) * self.poison - 1e-9)
        chosen = torch.from_numpy(rows[np.diff(counted) > 0])
        labels, inputs = tensors.labels.clone(), tensors.inputs.clone()
        labels[chosen] = self.target
        inputs[chosen] = self.patched(inputs[chosen], tensors.inputs)
        return replace(tensors, labels=labels, inputs=inputs)

    def patched(self, images: Tensor, all_images: Tensor) -> Tensor:
        """Return the images with the patch, as bright as the brightest pixel of the data."""
        marked = images.clone()
        side = slice(self.patch)
        if images.ndim > 2:
            marked[..., side, side] = all_images.max()
        else:
            marked[:, side] = all_images.max()
        return marked

    def success(
        self, predict: Callable[[Tensor], Tensor], tensors: Tensors, rows: NDArray[np.int64]
    ) -> float | None:
        """Return the share of patched test images of other classes that pass for the target."""
        index = torch.from_numpy(rows)
        index = index[tensors.labels[index] != self.target][:_MOST_TESTED]
        if not len(index):
            return None
        images = self.patched(tensors.inputs[index], tensors.inputs)
        ready = replace(tensors, inputs=images, labels=tensors.labels[index])
        inputs, _ = ready.gather(torch.arange(len(index)))
        return float((predict(inputs).argmax(dim=1) == self.target).double().mean())

    def updates(self, own: Tensor, honest: Tensor, draw: torch.Generator) -> Tensor:
        return own if self.factor == 1 else self.factor * own
