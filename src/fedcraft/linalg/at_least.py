"""Least distance under one-sided constraints, on the Gram matrix."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from fedcraft.linalg.pseudo_inverse import eigen_solve

_SOFTENING = 1e-8
_CUTOFF = 1e-6
_TOLERANCE = 1e-9
_ROUNDINGS = 4
_MEANINGFUL = 1e-2  # the share of a demand that may be lost in rounding


def at_least_dual(kernel: Tensor, gap: Tensor) -> Tensor:
    """Return lambda so that g = r + U^T lambda solves min ||g - r||^2 s.t. U g >= rho.

    With K = U U^T and b = rho - U r the dual is min 1/2 l^T K l - b^T l over l >= 0: a non-negative
    least squares problem in a Cholesky factor of K. K is softened by a tiny multiple of the
    identity, so that impossible demands (opposite clients) have a solution, that with the least
    violation; the support found this way is then solved again without the softening. The answer is
    exact where that is optimal: where the demands can be met with multipliers that float64 can
    still multiply out (two clients up to a distance of about 1e-6 from opposite; several that
    nearly depend on each other, up to a smallest singular value of U of about 1e-3). Elsewhere it
    falls short of the demands, and the certificate's residual shows by how much.
    """
    softened = kernel + _SOFTENING * torch.eye(kernel.shape[0], dtype=kernel.dtype)
    factor = torch.linalg.cholesky(softened)
    right = torch.linalg.solve_triangular(factor, gap.unsqueeze(-1), upper=False).squeeze(-1)
    solution, _ = nnls(factor.T.numpy(), right.numpy(), maxiter=30 * kernel.shape[0])
    multipliers = torch.from_numpy(np.asarray(solution))
    return _polish(kernel, gap, multipliers)


def _polish(kernel: Tensor, gap: Tensor, softened: Tensor) -> Tensor:
    """Solve the support's equalities without the softening; keep it only if it is optimal."""
    support = torch.nonzero(softened > 0).flatten()
    if len(support) == 0:
        return softened
    block = kernel[support][:, support]
    factor, failed = torch.linalg.cholesky_ex(block)
    if int(failed):
        return _shortest(kernel, softened)
    exact = torch.zeros_like(softened)
    exact[support] = torch.cholesky_solve(gap[support].unsqueeze(-1), factor).squeeze(-1)
    return exact if _optimal(kernel, gap, exact) else _shortest(kernel, softened)


def _optimal(kernel: Tensor, gap: Tensor, multipliers: Tensor) -> bool:
    """Tell whether l >= 0 and K l >= b, up to a rounding that is small beside the demands."""
    demand = 1 + float(gap.abs().max())
    rounding = _ROUNDINGS * torch.finfo(kernel.dtype).eps * (kernel.abs() @ multipliers.abs())
    enough = kernel @ multipliers - gap >= -(_TOLERANCE * demand + rounding)
    meant = rounding.max() <= _MEANINGFUL * demand
    return bool((multipliers >= 0).all()) and bool(enough.all()) and bool(meant)


def _shortest(kernel: Tensor, multipliers: Tensor) -> Tensor:
    """Return the smallest coefficients with the same U^T c.

    Where demands contradict each other the multipliers grow like 1 / softening and cancel in
    U^T c; float32 rows could not cancel them.
    """
    return eigen_solve(kernel, kernel @ multipliers, _CUTOFF)[0]
