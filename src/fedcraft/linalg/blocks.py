"""The three products that touch the m x d data, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedcraft.errors import NonFiniteError
from fedcraft.linalg.rounding import vanishes


def block_grams(matrix: Tensor, slices: Sequence[slice]) -> Tensor:
    """Return G[q] = X_q X_q^T as (Q, m, m) float64, multiplied in the dtype of ``matrix``.

    Rows too short to be squared in that dtype count as zero: see ``without_vanishing``. Cost
    O(m^2 d): the most expensive product of every rule that looks at the geometry.
    """
    count = matrix.shape[0]
    grams = matrix.new_empty(len(slices), count, count)
    for block, gram in zip(_blocks(matrix, slices), grams.unbind(), strict=True):
        torch.mm(block, block.T, out=gram)
    if _overflowed(grams):
        return block_grams(matrix.to(torch.float64), slices)
    return without_vanishing(finite_products(grams.to("cpu", torch.float64)), matrix.dtype)


def block_dots(matrix: Tensor, vector: Tensor, slices: Sequence[slice]) -> Tensor:
    """Return <x_i^q, v^q> as (Q, m) float64, in O(m d)."""
    pairs = zip(_blocks(matrix, slices), _blocks(vector, slices), strict=True)
    dots = torch.stack([torch.mv(block, part) for block, part in pairs])
    if _overflowed(dots):
        return block_dots(matrix.to(torch.float64), vector.to(torch.float64), slices)
    return finite_products(dots.to("cpu", torch.float64))


def block_square_norms(matrix: Tensor, slices: Sequence[slice]) -> Tensor:
    """Return ||x_i^q||^2 as (Q, m) float64, zero where it vanishes, in O(m d)."""
    blocks = _blocks(matrix, slices)
    norms = torch.stack([torch.linalg.vector_norm(block, dim=1) for block in blocks])
    if _overflowed(norms):
        return block_square_norms(matrix.to(torch.float64), slices)
    squares = finite_products(norms.to("cpu", torch.float64).square())
    return torch.where(vanishes(squares, matrix.dtype), 0, squares)


def block_combine(
    matrix: Tensor,
    coefficients: Tensor,
    slices: Sequence[slice],
    base: Tensor | None = None,
    base_scale: Tensor | None = None,
) -> Tensor:
    """Return g^q = sum_i c[q, i] x_i^q + s[q] b^q as one flat vector, in O(m d)."""
    weights = coefficients.to(matrix).unbind()
    rows = [block.T for block in _blocks(matrix, slices)]
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
    if not bool(torch.isfinite(products).all()):
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


def _overflowed(products: Tensor) -> bool:
    """Float32 rows longer than 1.8e19 have infinite squares: float64 has room for them."""
    return products.dtype != torch.float64 and not bool(torch.isfinite(products).all())


def _blocks(values: Tensor, slices: Sequence[slice]) -> tuple[Tensor, ...]:
    return torch.split_with_sizes(values, [block.stop - block.start for block in slices], dim=-1)


def unit_grams(grams: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Gram matrices of unit updates, and 1 / ||g_i||; both are zero for zero updates."""
    norms = grams.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    inverse = torch.where(norms > 0, 1 / torch.where(norms > 0, norms, 1), 0)
    return grams * inverse.unsqueeze(-1) * inverse.unsqueeze(-2), inverse
