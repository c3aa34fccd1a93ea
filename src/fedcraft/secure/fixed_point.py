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
_PIECE = 1 << 16  # numbers worked on at a time: only the result is as long as a model
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
            fine = (errors <= precision * lengths) & (steps <= coarsest_steps(sizes, coefficients))
            if bool(fine.all()):
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

    def encode(self, units: Tensor, coefficients: Sequence[float]) -> Words:
        """Return c^q u^q of one client, layer after layer, as numbers modulo 2^32.

        Only their lower b bits are sent.
        """
        words, start = np.empty(self.count, np.uint32), 0
        layers = torch.split_with_sizes(units, list(self.sizes))
        for layer, factor, step in zip(layers, coefficients, self.steps, strict=True):
            for piece in torch.split(layer, _PIECE) if step else ():
                scaled = piece.to(torch.float64).clamp_(-_ROOM, _ROOM).mul_(factor / step)
                words[start : start + len(piece)] = scaled.round_().to(torch.int64).numpy()
                start += len(piece)
        return words

    def decode(self, total: Words) -> Tensor:
        """Return the sum as a flat float32 vector, zero in layers that were left out."""
        half, bits, start = 2 ** (8 * self.width - 1), 8 * self.width, 0
        whole = torch.zeros(sum(self.sizes))
        for layer, step in zip(
            torch.split_with_sizes(whole, list(self.sizes)), self.steps, strict=True
        ):
            for piece in torch.split(layer, _PIECE) if step else ():
                words = total[start : start + len(piece)].astype(np.int64) & (2**bits - 1)
                signed = torch.from_numpy(np.where(words >= half, words - 2**bits, words))
                piece.copy_(signed.to(torch.float64) * step)
                start += len(piece)
        return whole

    def add_mask(self, words: Words, key: bytes, sign: int = 1) -> None:
        """Add a key's mask, uniform numbers, to ``words``, or subtract it."""
        stream = Keystream(key)
        for piece in np.split(words, range(_PIECE, len(words), _PIECE)):
            change = np.add if sign > 0 else np.subtract
            change(piece, stream.read(4 * len(piece)).view("<u4"), out=piece)

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


def coarsest_steps(sizes: Sequence[int], coefficients: Tensor) -> Tensor:
    """Return, by layer, what a client adds to a coordinate of the sum: c / sqrt(d), for a mean c.

    With coarser steps most clients would be rounded away, and the sum would be that of the few with
    large coefficients.
    """
    typical = coefficients.square().mean(-1).sqrt()
    return typical / torch.tensor(sizes, dtype=typical.dtype).sqrt()
