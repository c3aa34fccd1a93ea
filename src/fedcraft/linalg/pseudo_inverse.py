"""The pseudo-inverse of unit rows U through their Gram matrices K = U U^T.

U^+ b = U^T K^+ b: only m x m matrices are factorised. There are two traps.

* The pseudo-inverse drops singular values of U below a cut-off times sigma_max. On K the same
  cut-off is *squared*, and may fall below the rounding of a float32 product.
* A Gram matrix doubles the condition number, so its rounding may be amplified.

A Cholesky solve is trusted only where the inverse it yields shows that rounding stays below
``_TRUSTED``. Where it stays below ``_CORRECTABLE``, the answer's products can be measured on the
rows themselves and the difference solved for again, which squares the relative error (the
corrected semi-normal equations). ``projection`` solves every other layer with more care.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_TRUSTED = {torch.float32: 1e-5, torch.float64: 1e-13}
_CORRECTABLE = {torch.float32: 1e-2, torch.float64: 0.0}
_ONE_IS_ENOUGH = 1e-3
_MARGIN = 1.01  # above the floor, beyond all rounding of the products


@dataclass(frozen=True)
class CholeskySolution:
    """Solutions of (Q, m, m) positive definite systems, and how far they can be relied on."""

    coefficients: Tensor  # (Q, m)
    inverse: Tensor  # (Q, m, m)
    trusted: Tensor  # (Q,) bool: as good as the problem allows
    corrections: Tensor  # (Q,): measured corrections that make the others so; 0 where none does


def cholesky_solve(
    kernel: Tensor, target: Tensor, dtype: torch.dtype, cutoffs: Tensor, floor: float = 0.0
) -> CholeskySolution:
    """Solve (Q, m, m) positive definite systems by Cholesky with one step of refinement.

    A layer is trusted when eps(dtype) ||K^-1||_F stays small, the expected effect of independent
    roundings of K's entries on the answer, and no singular value of U can lie below the layer's
    ``cutoffs`` (Q,). It can be corrected if also none lies below ``floor``.
    """
    factor, failed = torch.linalg.cholesky_ex(kernel)
    solved, identity = failed == 0, torch.eye(kernel.shape[-1], dtype=kernel.dtype)
    factor[~solved] = identity
    inverse = torch.cholesky_inverse(factor)
    rough = apply(inverse, target)
    refined = rough + apply(inverse, target - apply(kernel, rough))
    inverse_norm = torch.linalg.vector_norm(inverse, dim=(1, 2))
    rounding = torch.finfo(dtype).eps * inverse_norm
    # ||K|| ||K^-1|| bounds (sigma_max / sigma_min)^2 from above.
    condition = torch.linalg.vector_norm(kernel, dim=(1, 2)) * inverse_norm
    usable = solved & (cutoffs.square() * condition < 1)
    trusted = usable & (rounding <= _TRUSTED[dtype])
    wanted = usable & ~trusted & (rounding <= _CORRECTABLE[dtype])
    if bool((wanted & (inverse_norm * floor**2 > 1)).any()):
        wanted &= torch.linalg.cholesky_ex(kernel - _MARGIN * floor**2 * identity)[1] == 0
    corrections = wanted * torch.where(rounding > _ONE_IS_ENOUGH, 2, 1)
    return CholeskySolution(refined, inverse, trusted, corrections)


def apply(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Multiply (Q, m, m) matrices with (Q, m) vectors, layer by layer."""
    return torch.bmm(matrices, vectors.unsqueeze(-1)).squeeze(-1)


def eigen_solve(
    kernel: Tensor, target: Tensor, cutoff: float, floor: float = 0.0
) -> tuple[Tensor, int, bool]:
    """Return K^+ b, the rank, and whether ``floor`` acted, for one float64 Gram matrix.

    ``target`` is one b, or several as columns.
    ``cutoff`` is U's *relative* cut-off; squared, it is raised to the rounding of float64 where it
    would fall below it. With a ``floor`` on singular values no eigenvalue counts for less than its
    square, and only what is rounding in float64 is cut off, so that nothing jumps.
    """
    values, vectors = torch.linalg.eigh(kernel)
    largest = values[-1].clamp(min=0)
    lost = 4 * kernel.shape[0] * torch.finfo(torch.float64).eps
    counted = values > max(cutoff**2, lost) * largest
    kept = values > lost * largest if floor else counted
    inverse = torch.where(kept, 1 / torch.where(kept, values, 1).clamp(min=floor**2), 0)
    limited = bool((kept & (values < floor**2)).any())
    if target.ndim == 2:
        inverse = inverse.unsqueeze(-1)
    return vectors @ (inverse * (vectors.T @ target)), int(counted.sum()), limited


def singular_solve(
    units: Tensor, target: Tensor, cutoff: float, floor: float = 0.0
) -> tuple[Tensor, int, bool]:
    """Return U^+ b itself, the rank and whether ``floor`` acted, from the float64 matrix U.

    Not the coefficients K^+ b: they are of size 1 / sigma^2, and multiplying them out would lose
    twice the digits that the problem does. ``floor`` acts as in :func:`eigen_solve`.
    """
    left, values, right = torch.linalg.svd(units, full_matrices=False)
    counted = values > cutoff * values[0].clamp(min=0)
    lost = 4 * max(units.shape) * torch.finfo(torch.float64).eps
    kept = values > lost * values[0] if floor else counted
    below = kept & (values < floor)
    inverse = torch.where(kept, 1 / torch.where(kept, values, 1), 0)
    inverse = torch.where(below, values / (floor or 1) ** 2, inverse)
    limited = bool(below.any())
    return right.T @ (inverse * (left.T @ target)), int(counted.sum()), limited


def raised(kernel: Tensor, floor: float) -> Tensor:
    """Return K with no eigenvalue below ``floor`` squared."""
    if not floor:
        return kernel
    values, vectors = torch.linalg.eigh(kernel)
    lifted: Tensor = kernel + (vectors * (floor**2 - values).clamp(min=0)) @ vectors.T
    return lifted
