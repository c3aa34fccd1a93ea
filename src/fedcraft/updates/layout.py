"""The positions of a model's layers in one flat vector."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedcraft.errors import InputError, require
from fedcraft.updates.reading import whole_number

Grouping = Literal["layer", "tensor", "whole"]
_GROUPINGS = ("layer", "tensor", "whole")
NORMS = (nn.GroupNorm, nn.LayerNorm, nn.modules.batchnorm._NormBase)
_CONVOLUTIONS = (nn.modules.conv._ConvNd,)


@dataclass(frozen=True)
class Layer:
    """A named run of coordinates: the block on which one subproblem is solved."""

    name: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def slice(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class TensorSlot:
    """One parameter tensor inside the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The layers of a flat vector, in order and without gaps.

    >>> Layout.from_sizes([3, 2]).slices
    (slice(0, 3, None), slice(3, 5, None))
    """

    layers: tuple[Layer, ...]
    tensors: tuple[TensorSlot, ...] = ()

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError("layers: expected at least one layer, found none")
        position = 0
        for layer in self.layers:
            if layer.start != position or layer.size <= 0:
                raise InputError(
                    f"layers: expected non-empty slices that follow each other; layer "
                    f"{layer.name!r} is [{layer.start}, {layer.stop}) where {position} should start"
                )
            position = layer.stop

    @property
    def dimension(self) -> int:
        """Number of coordinates d."""
        return self.layers[-1].stop

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self.layers)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(layer.size for layer in self.layers)

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        return tuple(layer.slice for layer in self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    @classmethod
    def whole(cls, dimension: int) -> Layout:
        """One layer that holds everything: the whole-vector form of a rule."""
        return cls((Layer("all", 0, dimension),))

    @classmethod
    def from_sizes(cls, sizes: Iterable[int], names: Sequence[str] | None = None) -> Layout:
        """Build consecutive layers from their sizes."""
        layers, start = [], 0
        for index, size in enumerate(sizes):
            name = names[index] if names is not None else f"layer{index}"
            layers.append(Layer(name, start, start + whole_number("layers", size)))
            start = layers[-1].stop
        return cls(tuple(layers))

    @classmethod
    def from_slices(
        cls, slices: Iterable[slice | Sequence[int]], dimension: int | None = None
    ) -> Layout:
        """Build layers from slices, or from (start, stop) pairs, that follow each other.

        A slice without an end goes to ``dimension``.
        """
        bounds = [_bounds(given, dimension) for given in slices]
        return cls(tuple(Layer(f"layer{i}", *pair) for i, pair in enumerate(bounds)))

    @classmethod
    def from_module(cls, module: nn.Module, group: Grouping = "layer") -> Layout:
        """Lay out a module's trainable floats in ``named_parameters()`` order.

        ``group="layer"`` is the paper's: weight and bias of one module together, and a norm joins
        the convolution registered before it in the same block. ``"tensor"`` makes every parameter
        a separate layer, ``"whole"`` the model a single one. Buffers are left out.
        """
        require_materialized("module", module)
        trained = ((n, p) for n, p in module.named_parameters() if p.requires_grad)
        named = {name: p for name, p in trained if p.is_floating_point()}
        owners = _owners(module)
        return cls.from_tensors(
            {name: tuple(p.shape) for name, p in named.items()},
            group=group,
            owners={name: owners[name.rpartition(".")[0]] for name in named},
        )

    @classmethod
    def from_tensors(
        cls,
        shapes: Mapping[str, Sequence[int]],
        group: Grouping = "layer",
        owners: Mapping[str, str] | None = None,
    ) -> Layout:
        """Lay out named tensors; without ``owners`` a layer is the name up to its last dot."""
        if group not in _GROUPINGS:
            raise InputError(f"group: expected one of {_GROUPINGS}, found {group!r}")
        if not shapes:
            raise InputError("no trainable float tensor found: there is nothing to lay out")
        slots: list[TensorSlot] = []
        layers: list[Layer] = []
        for name, shape in shapes.items():
            slots.append(TensorSlot(name, tuple(shape), slots[-1].stop if slots else 0))
            slot = slots[-1]
            owner = _layer_name(slot.name, group, owners)
            if layers and layers[-1].name == owner:
                layers[-1] = Layer(owner, layers[-1].start, slot.stop)
            else:
                layers.append(Layer(owner, slot.start, slot.stop))
        return cls(tuple(layers), tuple(slots))

    def flatten(self, state: Mapping[str, Tensor]) -> Tensor:
        """Concatenate a state dict's geometry into one vector; other entries are ignored."""
        self._require_tensors()
        parts = []
        for slot in self.tensors:
            if slot.name not in state:
                raise InputError(f"state dict: parameter {slot.name!r} is missing")
            if tuple(state[slot.name].shape) != slot.shape:
                found = tuple(state[slot.name].shape)
                raise InputError(f"{slot.name!r}: expected shape {slot.shape}, found {found}")
            parts.append(state[slot.name].detach().reshape(-1))
        return torch.cat(parts)

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Cut a flat vector back into named tensors (views of it)."""
        self._require_tensors()
        if vector.shape != (self.dimension,):
            found = tuple(vector.shape)
            raise InputError(f"vector: expected {self.dimension} numbers, found shape {found}")
        return {t.name: vector[t.start : t.stop].view(t.shape) for t in self.tensors}

    def _require_tensors(self) -> None:
        if not self.tensors:
            raise InputError(
                "this layout was made from sizes alone and has no tensor names; "
                "make it with Layout.from_module or Layout.from_tensors"
            )


def require_materialized(what: str, module: nn.Module) -> None:
    """Raise ``InputError`` if a parameter or buffer of a module has no numbers yet."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise InputError(
                f"{what}: {name} of {type(module).__name__} has no shape yet, because its layer is "
                "lazy. Call the module once on a batch of inputs first"
            )
        if tensor.is_meta:
            raise InputError(
                f"{what}: {name} of {type(module).__name__} is on the device meta and holds no "
                'numbers. Call module.to_empty(device="cpu") and initialise it first'
            )


def _bounds(given: slice | Sequence[int], dimension: int | None) -> tuple[int, int]:
    if isinstance(given, slice):
        require(given.step in (None, 1), "layers", "slices without a step", given)
        start, stop = given.start or 0, dimension if given.stop is None else given.stop
    else:
        require(np.shape(given) == (2,), "layers", "slices or (start, stop) pairs", given)
        start, stop = given
    return whole_number("layers", start), whole_number("layers", stop)


def _layer_name(name: str, group: Grouping, owners: Mapping[str, str] | None) -> str:
    if group == "whole":
        return "all"
    if group == "tensor":
        return name
    return owners[name] if owners is not None else name.rpartition(".")[0] or name


def _owners(module: nn.Module) -> dict[str, str]:
    """Map every module's path to its layer: itself, or for a norm its block's last convolution."""
    owners: dict[str, str] = {}
    for path, parent in module.named_modules():
        prefix = f"{path}." if path else ""
        owners.setdefault(path, path or "all")
        convolution: str | None = None
        for name, child in parent.named_children():
            if isinstance(child, _CONVOLUTIONS):
                convolution = prefix + name
            joined = isinstance(child, NORMS) and convolution is not None
            owners[prefix + name] = convolution if joined and convolution else prefix + name
    return owners
