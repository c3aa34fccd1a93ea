"""The three products that touch the m x d data, layer by layer and in pieces of columns.

A piece is multiplied in the dtype of the rows and the pieces are added up in float64: a float32 sum
over a whole layer would lose ten times as many digits. ``precise`` products convert one piece after
the other to float64, so that no layer is ever copied as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedcraft.errors import NonFiniteError
from fedcraft.linalg.rounding import vanishes

_WIDTH = 4096  # columns of a piece
_NARROW = 256  # for few rows, whose products torch sums up less carefully
_FEW = 32  # rows; from here on computing only one triangle is worth while
_BATCH = 1024  # narrow pieces in one call
_IN_CACHE = 2**19  # numbers of a piece in float64


def block_grams(matrix: Tensor, slices: Sequence[slice]) -> Tensor:
    """Return G[q] = X_q X_q^T as (Q, m, m) float64, multiplied in the dtype of ``matrix``.

    Rows too short to be squared in that dtype count as zero: see ``without_vanishing``. Cost
    O(m^2 d): the most expensive product of every rule that looks at the geometry.
    """
    blocks = _blocks(matrix, slices)
    with _numpy_threads(matrix):
        grams = torch.stack([_gram(block, precise=False) for block in blocks]).cpu()
        if not _finite(grams):  # float32 rows longer than 1.8e19
            precise = torch.stack([_gram(block, precise=True) for block in blocks])
            grams = finite_products(precise.cpu())
    return without_vanishing(grams, matrix.dtype)


def layer_gram(block: Tensor) -> Tensor:
    """Return X X^T of one layer, multiplied and added up in float64."""
    with _numpy_threads(block):
        return _gram(block, precise=True).cpu()


def layer_dots(block: Tensor, vector: Tensor) -> Tensor:
    """Return X v of one layer, multiplied in float64 piece by piece."""
    dots = torch.zeros(block.shape[0], dtype=torch.float64, device=block.device)
    start = 0
    for piece in _pieces(block, precise=True):
        dots += piece @ vector[start : start + piece.shape[1]].to(piece)
        start += piece.shape[1]
    return dots.cpu()


def layer_combine(block: Tensor, coefficients: Tensor) -> Tensor:
    """Return X^T c of one layer in float64, piece by piece."""
    pieces = _pieces(block, precise=True)
    return torch.cat([piece.T @ coefficients.to(piece) for piece in pieces])


def block_dots(matrix: Tensor, vector: Tensor, slices: Sequence[slice]) -> Tensor:
    """Return <x_i^q, v^q> as (Q, m) float64, in O(m d)."""
    width = 2 * _WIDTH if matrix.shape[0] >= _FEW else 8 * _WIDTH
    widths = [_widths(block.stop - block.start, width) for block in slices]
    every = [piece for layer in widths for piece in layer]
    pairs = zip(matrix.split_with_sizes(every, dim=1), vector.split_with_sizes(every), strict=True)
    dots = torch.stack([torch.mv(block, part) for block, part in pairs]).to("cpu", torch.float64)
    if len(every) > len(slices):
        layers = dots.split_with_sizes([len(layer) for layer in widths])
        dots = torch.stack([pieces.sum(0) for pieces in layers])
    if _finite(dots):
        return dots
    pairs = zip(_blocks(matrix, slices), _blocks(vector, slices), strict=True)
    return finite_products(torch.stack([layer_dots(block, part) for block, part in pairs]))


def block_square_norms(matrix: Tensor, slices: Sequence[slice]) -> Tensor:
    """Return ||x_i^q||^2 as (Q, m) float64, zero where it vanishes, in O(m d)."""
    blocks = _blocks(matrix, slices)
    norms = torch.stack([torch.linalg.vector_norm(block, dim=1) for block in blocks])
    if _overflowed(norms):
        norms = torch.stack(
            [torch.linalg.vector_norm(block, dim=1, dtype=torch.float64) for block in blocks]
        )
    squares = finite_products(norms.to("cpu", torch.float64).square())
    return torch.where(vanishes(squares, matrix.dtype), 0, squares)


def block_combine(
    matrix: Tensor,
    coefficients: Tensor,
    slices: Sequence[slice],
    base: Tensor | None = None,
    base_scale: Tensor | None = None,
) -> Tensor:
    """Return g^q = sum_i c[q, i] x_i^q + s[q] b^q as one flat vector, in O(m d).

    A layer whose coefficients are all zero costs no look at its rows.
    """
    counts = [len(matrix) if used else 0 for used in coefficients.any(-1).tolist()]
    weights = [w[:m] for w, m in zip(coefficients.to(matrix), counts, strict=True)]
    rows = [x[:m].T for x, m in zip(_blocks(matrix, slices), counts, strict=True)]
    result = matrix.new_empty(matrix.shape[1])
    parts = _blocks(result, slices)
    if base is None or base_scale is None:
        for row, weight, part in zip(rows, weights, parts, strict=True):
            torch.mv(row, weight, out=part)
    else:
        bases = zip(_blocks(base, slices), base_scale.tolist(), strict=True)
        for row, weight, part, (b, s) in zip(rows, weights, parts, bases, strict=True):
            torch.addmv(b, row, weight, beta=s, out=part)
    return result


def finite_products(products: Tensor) -> Tensor:
    """Return products multiplied in float64; raise an error if even these overflow."""
    if not _finite(products):
        raise NonFiniteError("updates: some are so long that their products overflow float64")
    return products


def without_vanishing(grams: Tensor, dtype: torch.dtype) -> Tensor:
    """Return Gram matrices (Q, m, m) with zero rows for those too short to be squared in ``dtype``.

    A square below the smallest normal number has lost its digits, or is zero where the products
    with longer rows are not: such a matrix is not the Gram matrix of any vectors.
    """
    gone = vanishes(torch.diagonal(grams, dim1=1, dim2=2), dtype)
    if not bool(gone.any()):
        return grams
    return torch.where(gone.unsqueeze(-1) | gone.unsqueeze(-2), 0, grams)


def _pieces(block: Tensor, precise: bool) -> Iterator[Tensor]:
    """Yield pieces of columns; if ``precise``, in a float64 buffer that the next one overwrites."""
    if not precise or block.dtype == torch.float64:
        yield from torch.split(block, _WIDTH, dim=1)
        return
    width = max(2 * _NARROW, min(_WIDTH, _IN_CACHE // block.shape[0], block.shape[1]))
    buffer = block.new_empty(block.shape[0], width, dtype=torch.float64)
    for piece in torch.split(block, width, dim=1):
        yield buffer[:, : piece.shape[1]].copy_(piece)


def _gram(block: Tensor, precise: bool) -> Tensor:
    """X X^T in float64: piece by piece, for few rows all pieces in one call."""
    count, width = block.shape
    if not precise and count < _FEW and width >= 2 * _NARROW:
        return _narrow_gram(block)
    total: Tensor | None = None
    for piece in _pieces(block, precise):
        product = _square(piece)
        total = product.to(torch.float64) if total is None else total.add_(product)
    return block.new_zeros(count, count, dtype=torch.float64) if total is None else total


def _narrow_gram(block: Tensor) -> Tensor:
    stack = block.unfold(1, _NARROW, _NARROW).transpose(0, 1)
    rest = block[:, len(stack) * _NARROW :]
    gram = torch.mm(rest, rest.T).to(torch.float64)
    for pieces in torch.split(stack, _BATCH):
        # Converting first is faster than a sum that converts; it adds up in the same order.
        gram += torch.bmm(pieces, pieces.mT).to(torch.float64).sum(0)
    return gram


def _square(piece: Tensor) -> Tensor:
    """X X^T. numpy sees that both factors are the same matrix and computes one triangle only."""
    if piece.shape[0] >= _FEW and piece.device.type == "cpu":
        rows = piece.numpy()
        return torch.from_numpy(rows @ rows.T)
    return piece @ piece.T


def _numpy_threads(rows: Tensor) -> AbstractContextManager[Any]:
    """Give numpy's matrix products, which :func:`_square` uses, as many threads as torch has."""
    if rows.shape[0] < _FEW or rows.device.type != "cpu":
        return nullcontext()
    limited: AbstractContextManager[Any] = _openblas().limit(limits=torch.get_num_threads())
    return limited


@cache
def _openblas() -> Any:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController().select(internal_api="openblas")


def _widths(size: int, width: int) -> list[int]:
    """Divide ``size`` columns into pieces of at most ``width``."""
    return [min(width, size - start) for start in range(0, size, width)]


def _overflowed(products: Tensor) -> bool:
    """Float32 rows longer than 1.8e19 have infinite squares: float64 has room for them."""
    return products.dtype != torch.float64 and not _finite(products)


def _finite(values: Tensor) -> bool:
    """Tell whether all numbers are finite: they are where their sum is, which is faster to see."""
    return math.isfinite(values.sum()) or bool(torch.isfinite(values).all())


def _blocks(values: Tensor, slices: Sequence[slice]) -> tuple[Tensor, ...]:
    return torch.split_with_sizes(values, [block.stop - block.start for block in slices], dim=-1)
