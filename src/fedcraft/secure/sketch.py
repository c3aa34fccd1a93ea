"""Sketches: a few random numbers per layer that show angles between updates, and nothing else.

With P a k x d matrix of independent standard normal numbers, the rows of (P u_1, ..., P u_m) are
independent draws from N(0, K), K = U U^T: their law depends on U only through the Gram matrix. So
whoever does not know P learns K up to an error of about 1 / sqrt(k), and nothing else about U. Two
departures keep the cost low:

* A layer with d <= k coordinates is multiplied by a random orthogonal d x d matrix instead. The law
  still depends on K only, and K is exact.
* A layer longer than ``fold`` is first folded: v = sum_b s_b * (part b of u, shifted at random),
  with random signs s_b. Then the law depends on U through the Gram matrix of the folded rows, which
  differs from K by a random error of about 1 / sqrt(fold).

Normal numbers are quantiles: 65,536 equally likely values with variance one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcraft.secure.primitives import Keystream, derive

_BLOCK = 1 << 22  # random numbers held at a time
_LEVELS = 1 << 16


def sketch_sizes(sizes: Sequence[int], count: int) -> tuple[int, ...]:
    """How many numbers every layer's sketch has."""
    return tuple(min(size, count) for size in sizes)


def sketch(
    rows: Tensor, sizes: Sequence[int], seed: bytes, *, count: int, fold: int
) -> list[Tensor]:
    """Return P_q x^q for every row x of (m, d), one (m, k_q) float32 tensor per layer.

    P_q follows from the seed, so all clients of a round use the same one.
    """
    blocks = torch.split_with_sizes(rows, list(sizes), dim=1)
    if count == 0:
        return [rows.new_zeros(len(rows), 0) for _ in sizes]
    found = []
    for index, block in enumerate(blocks):
        stream = Keystream(derive(seed, "sketch", index.to_bytes(4, "little")))
        if block.shape[1] <= count:
            found.append(block.to(torch.float32) @ _orthogonal(stream, block.shape[1]).T)
        else:
            found.append(_projected(_folded(block.to(torch.float32), stream, fold), stream, count))
    return found


def gram_from(sketches: Sequence[Tensor]) -> Tensor:
    """Return the cosines between clients by layer, (Q, m, m) float64, with a diagonal of one.

    A row of zeros has the cosine zero with all others.
    """
    kernels = []
    for part in sketches:
        exact = part.to(torch.float64)
        lengths = torch.linalg.vector_norm(exact, dim=1, keepdim=True)
        units = exact / torch.where(lengths > 0, lengths, 1)
        kernel = units @ units.T
        kernels.append(kernel - torch.diag(torch.diagonal(kernel)) + torch.eye(len(part)))
    return torch.stack(kernels).to(torch.float64)


def _projected(rows: Tensor, stream: Keystream, count: int) -> Tensor:
    total = rows.new_zeros(len(rows), count)
    width = max(_BLOCK // count, 1)
    for part in torch.split(rows, width, dim=1):
        total += part @ _normal(stream, part.shape[1], count)
    return total


def _folded(rows: Tensor, stream: Keystream, length: int) -> Tensor:
    """Add up the pieces of every row after random signs and a random cyclic shift of each piece."""
    if rows.shape[1] <= length:
        return rows
    folded = rows.new_zeros(len(rows), length)
    for piece in torch.split(rows, length, dim=1):
        bits = np.unpackbits(stream.read(-(-length // 8)))[: piece.shape[1]]
        signs = torch.from_numpy(1.0 - 2.0 * bits.astype(np.float32))
        shift = int.from_bytes(stream.read(8).tobytes(), "little") % length
        padded = torch.nn.functional.pad(piece * signs, (0, length - piece.shape[1]))
        folded += torch.roll(padded, shift, dims=1)
    return folded


def _orthogonal(stream: Keystream, size: int) -> Tensor:
    """A uniformly distributed orthogonal matrix: QR of a normal one, with R's signs taken out."""
    base, upper = torch.linalg.qr(_normal(stream, size, size).to(torch.float64))
    uniform: Tensor = (base * torch.sign(torch.diagonal(upper))).to(torch.float32)
    return uniform


def _normal(stream: Keystream, rows: int, columns: int) -> Tensor:
    words = stream.read(2 * rows * columns).view(np.uint16)
    return torch.from_numpy(_quantiles()[words]).view(rows, columns)


@cache
def _quantiles() -> NDArray[np.float32]:
    from scipy.special import ndtri

    levels = ndtri((np.arange(_LEVELS) + 0.5) / _LEVELS)
    return np.asarray(levels / np.sqrt(np.mean(levels**2)), dtype=np.float32)
