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
    for index, block in enumerate(slices):
        torch.mm(matrix[:, block], matrix[:, block].T, out=grams[index])
    if not bool(torch.isfinite(grams).all()) and matrix.dtype != torch.float64:
        return block_grams(matrix.to(torch.float64), slices)  # squares of huge rows overflow
    return grams.to("cpu", torch.float64)


def block_dots(matrix: Tensor, vector: Tensor, slices: Sequence[slice]) -> Tensor:
    """Return <x_i^q, v^q> as (Q, m) float64, in O(m d)."""
    dots = [torch.mv(matrix[:, block], vector[block]) for block in slices]
    return torch.stack(dots).to("cpu", torch.float64)


def block_square_norms(matrix: Tensor, slices: Sequence[slice]) -> Tensor:
    """Return ||x_i^q||^2 as (Q, m) float64, in O(m d)."""
    norms = [torch.linalg.vector_norm(matrix[:, block], dim=1) for block in slices]
    return torch.stack(norms).to("cpu", torch.float64).square()


def block_combine(
    matrix: Tensor,
    coefficients: Tensor,
    slices: Sequence[slice],
    base: Tensor | None = None,
    base_scale: Tensor | None = None,
) -> Tensor:
    """Return g^q = sum_i c[q, i] x_i^q + s[q] b^q as one flat vector, in O(m d)."""
    weights = coefficients.to(matrix)
    result = matrix.new_empty(matrix.shape[1])
    for index, block in enumerate(slices):
        rows = matrix[:, block].T
        if base is None or base_scale is None:
            torch.mv(rows, weights[index], out=result[block])
        else:
            scale = float(base_scale[index])
            torch.addmv(base[block], rows, weights[index], beta=scale, out=result[block])
    return result
