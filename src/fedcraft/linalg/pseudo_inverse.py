"""The pseudo-inverse of unit rows U through their Gram matrices K = U U^T.

U^+ b = U^T K^+ b: only m x m matrices are factorised. There are two traps.

* The pseudo-inverse drops singular values of U below a cut-off times sigma_max. On K the same
  cut-off is *squared*, and may fall below the rounding of a float32 product.
* A Gram matrix doubles the condition number, so its rounding may be amplified.

One rule avoids both: a Cholesky solve is trusted only where the inverse it yields shows that
rounding stays below ``_TRUSTED``; ``projection`` solves every other layer with more care.
"""

from __future__ import annotations

import torch
from torch import Tensor

_TRUSTED = {torch.float32: 1e-5, torch.float64: 1e-13}


def trusted_solve(
    kernel: Tensor, target: Tensor, dtype: torch.dtype, cutoffs: Tensor
) -> tuple[Tensor, Tensor]:
    """Solve (Q, m, m) positive definite systems by Cholesky with one step of refinement.

    Returns coefficients (Q, m), and for each layer whether they can be trusted, (Q,) bool: when
    eps(dtype) ||K^-1||_F stays small, the expected effect of independent roundings of K's entries
    on the answer, and no singular value of U can lie below the layer's ``cutoffs`` (Q,).
    """
    factor, failed = torch.linalg.cholesky_ex(kernel)
    identity = torch.eye(kernel.shape[-1], dtype=kernel.dtype)
    factor = torch.where((failed == 0)[:, None, None], factor, identity)
    inverse = torch.cholesky_inverse(factor)
    inverse_norm = torch.linalg.matrix_norm(inverse)
    rounding = torch.finfo(dtype).eps * inverse_norm
    # ||K|| ||K^-1|| bounds (sigma_max / sigma_min)^2 from above.
    full_rank = cutoffs.square() * torch.linalg.matrix_norm(kernel) * inverse_norm < 1
    trusted = (failed == 0) & (rounding <= _TRUSTED[dtype]) & full_rank
    rough = apply(inverse, target)
    return rough + apply(inverse, target - apply(kernel, rough)), trusted


def apply(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Multiply (Q, m, m) matrices with (Q, m) vectors, layer by layer."""
    return (matrices @ vectors.unsqueeze(-1)).squeeze(-1)


def eigen_solve(kernel: Tensor, target: Tensor, cutoff: float) -> tuple[Tensor, int]:
    """Return K^+ b and the rank for one float64 Gram matrix, given U's *relative* cut-off.

    The squared cut-off is raised to the rounding of float64 where it would fall below it.
    """
    values, vectors = torch.linalg.eigh(kernel)
    largest = values[-1].clamp(min=0)
    floor = max(cutoff**2, 4 * kernel.shape[0] * torch.finfo(torch.float64).eps)
    kept = values > floor * largest
    inverse = torch.where(kept, 1 / torch.where(kept, values, 1), 0)
    return vectors @ (inverse * (vectors.T @ target)), int(kept.sum())


def singular_solve(units: Tensor, target: Tensor, cutoff: float) -> tuple[Tensor, int]:
    """Return U^+ b itself and the rank from the singular values of the float64 matrix U.

    Not the coefficients K^+ b: they are of size 1 / sigma^2, and multiplying them out would lose
    twice the digits that the problem does.
    """
    left, values, right = torch.linalg.svd(units, full_matrices=False)
    kept = values > cutoff * values[0].clamp(min=0)
    inverse = torch.where(kept, 1 / torch.where(kept, values, 1), 0)
    return right.T @ (inverse * (left.T @ target)), int(kept.sum())
