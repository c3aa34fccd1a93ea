"""The three products that touch the m x d data, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["block_combine", "block_dots", "block_grams", "block_square_norms"]


def block_grams(matrix: Tensor, slices: Sequence[slice]) -> Tensor:
    """Return G[q] = X_q X_q^T as (Q, m, m) float64, multiplied in the dtype of ``matrix``.

    Cost O(m^2 d): the dearest product of every rule that looks at the geometry.
    """
    count = matrix.shape[0]
    grams = matrix.new_empty(len(slices), count, count)
    for block, gram in zip(_blocks(matrix, slices), grams.unbind(), strict=True):
        torch.mm(block, block.T, out=gram)
    if not bool(torch.isfinite(grams).all()) and matrix.dtype != torch.float64:
        return block_grams(matrix.to(torch.float64), slices)  # squares of huge rows overflow
    return grams.to("cpu", torch.float64)


def block_dots(matrix: Tensor, vector: Tensor, slices: Sequence[slice]) -> Tensor:
    """Return <x_i^q, v^q> as (Q, m) float64, in O(m d)."""
    pairs = zip(_blocks(matrix, slices), _blocks(vector, slices), strict=True)
    dots = [torch.mv(block, part) for block, part in pairs]
    return torch.stack(dots).to("cpu", torch.float64)


def block_square_norms(matrix: Tensor, slices: Sequence[slice]) -> Tensor:
    """Return ||x_i^q||^2 as (Q, m) float64, in O(m d)."""
    norms = [torch.linalg.vector_norm(block, dim=1) for block in _blocks(matrix, slices)]
    return torch.stack(norms).to("cpu", torch.float64).square()


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


def _blocks(values: Tensor, slices: Sequence[slice]) -> tuple[Tensor, ...]:
    return torch.split_with_sizes(values, [block.stop - block.start for block in slices], dim=-1)
