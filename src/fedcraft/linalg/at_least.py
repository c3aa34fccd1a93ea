"""Least distance under one-sided constraints, on the Gram matrix."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from fedcraft.linalg.pseudo_inverse import eigen_solve

_SOFTENING = 1e-8
_CUTOFF = 1e-6
_RANGE = 1e-12  # eigenvalues beside the largest: below it they are rounding
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
    return at_least_duals(kernel, gap.unsqueeze(0))[0]


def at_least_duals(kernel: Tensor, gaps: Tensor) -> Tensor:
    """Return the answers (c, m) of :func:`at_least_dual` to several demands (c, m) on the same K.

    They share the factor of K, and their supports are solved together.
    """
    found = torch.zeros_like(gaps)
    asked = torch.nonzero((gaps > 0).any(-1)).flatten()  # the others are met by r
    if len(asked) == 0:
        return found
    system, rights = (part.numpy() for part in _least_squares(kernel, gaps[asked]))
    solved = [nnls(system, right, maxiter=30 * len(kernel))[0] for right in rights]
    found[asked] = _polish(kernel, gaps[asked], torch.from_numpy(np.stack(solved)))
    return found


def _least_squares(kernel: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Return A, (r, m), and R, (c, r), with A^T A = K and A^T R = b.

    A is a Cholesky factor of the softened K, or, for many demands, one with fewer rows where K has
    a small rank and the demands lie in its range (they can all be met, without softening).
    """
    if len(gaps) > 1:
        values, vectors = torch.linalg.eigh(kernel)
        kept = values > _RANGE * values[-1]
        roots, basis = values[kept].sqrt(), vectors[:, kept]
        inside = gaps @ basis
        outside = (gaps - inside @ basis.T).abs().max()
        if 2 * len(roots) <= len(kernel) and outside <= _TOLERANCE:
            return roots.unsqueeze(-1) * basis.T, inside / roots
    softened = kernel + _SOFTENING * torch.eye(kernel.shape[0], dtype=kernel.dtype)
    factor = torch.linalg.cholesky(softened)
    return factor.T, torch.linalg.solve_triangular(factor, gaps.T, upper=False).T


def _polish(kernel: Tensor, gaps: Tensor, softened: Tensor) -> Tensor:
    """Solve the supports' equalities without the softening; keep what is optimal."""
    exact, solvable = _on_supports(kernel, gaps, softened > 0)
    good = solvable & _optimal(kernel, gaps, exact)
    answers = torch.where(good.unsqueeze(-1), exact, softened)
    if not bool(good.all()):
        answers[~good] = _shortest(kernel, softened[~good])
    return answers


def _on_supports(kernel: Tensor, gaps: Tensor, supports: Tensor) -> tuple[Tensor, Tensor]:
    """Return K_SS^-1 b_S for each row's support S, and whether that block has a factor."""
    width = int(supports.sum(-1).max())
    order = torch.argsort(supports.to(torch.int8), dim=-1, descending=True, stable=True)[:, :width]
    used = torch.gather(supports, 1, order)
    blocks = kernel[order.unsqueeze(-1), order.unsqueeze(-2)]
    both = used.unsqueeze(-1) & used.unsqueeze(-2)
    blocks = torch.where(both, blocks, torch.eye(width, dtype=kernel.dtype))
    factors, failed = torch.linalg.cholesky_ex(blocks)
    right = torch.where(used, torch.gather(gaps, 1, order), 0).unsqueeze(-1)
    solution = torch.cholesky_solve(right, factors).squeeze(-1)
    solution = torch.where((failed == 0).unsqueeze(-1) & used, solution, 0)
    return torch.zeros_like(gaps).scatter(1, order, solution), failed == 0


def _optimal(kernel: Tensor, gaps: Tensor, multipliers: Tensor) -> Tensor:
    """Tell whether l >= 0 and K l >= b, up to a rounding that is small beside the demands, (c,)."""
    demand = 1 + gaps.abs().amax(-1, keepdim=True)
    rounding = _ROUNDINGS * torch.finfo(kernel.dtype).eps * (multipliers.abs() @ kernel.abs())
    enough = multipliers @ kernel - gaps >= -(_TOLERANCE * demand + rounding)
    meant = rounding.amax(-1, keepdim=True) <= _MEANINGFUL * demand
    return ((multipliers >= 0) & enough & meant).all(-1)


def _shortest(kernel: Tensor, multipliers: Tensor) -> Tensor:
    """Return the smallest coefficients with the same U^T c for each row.

    Where demands contradict each other the multipliers grow like 1 / softening and cancel in
    U^T c; float32 rows could not cancel them.
    """
    return eigen_solve(kernel, kernel @ multipliers.T, _CUTOFF)[0].T
