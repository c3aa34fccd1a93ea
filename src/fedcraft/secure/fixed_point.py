"""Fixed-point numbers modulo 2^b: sums of them are exact and cannot overflow.

Client i sends round(c_i u_i / step) modulo 2^b, with |u_i| <= 1 in every coordinate. A sum over m
clients is at most sum_i |c_i| / step + m / 2, which the step keeps below 2^(b - 1): so the sum can
be read back exactly, whatever the updates are, and nothing is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcraft.errors import InputError
from fedcraft.secure.primitives import Bytes, Keystream

Words = NDArray[np.uint32]
WIDTHS = (2, 3, 4)
_ROOM = 1 + 1e-6  # a unit vector rounded to float32 may be a little longer than one


@dataclass(frozen=True)
class FixedPoint:
    """The step of every layer, and the bytes per number: b = 8 ``width``.

    Layers with step 0 are left out of the sum.
    """

    sizes: tuple[int, ...]
    steps: tuple[float, ...]
    width: int

    @classmethod
    def choose(
        cls, sizes: Sequence[int], coefficients: Tensor, lengths: Tensor, precision: float
    ) -> FixedPoint:
        """Return the narrowest numbers whose rounding changes no layer by more than it may.

        ``coefficients`` (Q, m) belong to unit vectors, ``lengths`` (Q,) are those of the layers
        that the sum contributes to. The rounding errors of m clients in d coordinates have a
        length of about sqrt(m d / 12) steps.
        """
        totals, clients = coefficients.abs().sum(-1) * _ROOM, coefficients.shape[1]
        for width in WIDTHS:
            steps = totals / (2 ** (8 * width - 1) - clients)
            errors = steps * torch.tensor([math.sqrt(clients * d / 12) for d in sizes])
            if bool((errors <= precision * lengths).all()):
                return cls(tuple(sizes), tuple(steps.tolist()), width)
        raise InputError(
            f"secure.precision: rounding to {8 * WIDTHS[-1]} bits changes a layer by "
            f"{float((errors / lengths).max()):.2g} of its length, more than {precision:g}; "
            "raise secure.precision"
        )

    @property
    def count(self) -> int:
        """How many numbers a client sends."""
        return sum(d for d, step in zip(self.sizes, self.steps, strict=True) if step)

    @property
    def _modulus_mask(self) -> np.uint32:
        return np.uint32(2 ** (8 * self.width) - 1)

    def encode(self, units: Tensor, coefficients: Sequence[float]) -> Words:
        """Return c^q u^q of one client, layer after layer, as numbers modulo 2^b."""
        parts = []
        layers = torch.split_with_sizes(units, list(self.sizes))
        for layer, factor, step in zip(layers, coefficients, self.steps, strict=True):
            if step:
                scaled = layer.to(torch.float64).clamp(-_ROOM, _ROOM) * (factor / step)
                parts.append(scaled.round().to(torch.int64).numpy().astype(np.uint32))
        joined = np.concatenate(parts) if parts else np.empty(0, np.uint32)
        return joined & self._modulus_mask

    def decode(self, total: Words) -> Tensor:
        """Return the sum as a flat float32 vector, zero in layers that were left out."""
        half, bits = 2 ** (8 * self.width - 1), 8 * self.width
        signed = torch.from_numpy((total & self._modulus_mask).astype(np.int64))
        signed = torch.where(signed >= half, signed - 2**bits, signed)
        parts, start = [], 0
        for size, step in zip(self.sizes, self.steps, strict=True):
            taken = signed[start : start + size] if step else torch.zeros(size)
            start += size if step else 0
            parts.append((taken.to(torch.float64) * step).to(torch.float32))
        return torch.cat(parts)

    def add(self, total: Words, other: Words, sign: int = 1) -> Words:
        """Return total + other or total - other modulo 2^b."""
        changed = total + other if sign > 0 else total - other
        return changed & self._modulus_mask

    def mask(self, key: bytes) -> Words:
        """Return uniform numbers modulo 2^b: the lower bits of uniform numbers modulo 2^32."""
        words: Words = Keystream(key).read(4 * self.count).view("<u4")
        return words & self._modulus_mask

    def pack(self, words: Words) -> Bytes:
        """Return numbers as bytes, ``width`` each."""
        four = words.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4)
        packed = np.empty((len(four), self.width), dtype=np.uint8)
        for place in range(self.width):  # column by column: several times as fast as at once
            packed[:, place] = four[:, place]
        return packed.reshape(-1)

    def unpack(self, packed: Bytes) -> Words:
        """Undo :meth:`pack`."""
        if packed.dtype != np.uint8 or packed.size != self.count * self.width:
            raise InputError(
                f"masked: expected {self.count * self.width} bytes, found {packed.size} of type "
                f"{packed.dtype}"
            )
        four = np.zeros((self.count, 4), dtype=np.uint8)
        for place in range(self.width):
            four[:, place] = packed[place :: self.width]
        return four.reshape(-1).view("<u4")
