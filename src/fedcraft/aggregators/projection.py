"""The projection shared by CRAFT and ConFIG: the closest point to a reference that meets targets.

Everything happens on the Gram matrices G_q = X_q X_q^T. With D = diag(1 / (||x_i|| + eps)) the unit
rows are U = D X, so K = D G D, U r = D X r, and the answer is r + X^T (D c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.linalg import TrustedSolve, eigen_solve, singular_solve, trusted_solve

__all__ = ["Constraint", "Projection", "project"]

Constraint = Literal["equal", "at_least"]


@dataclass(frozen=True)
class Projection:
    """Coefficients by layer: g^q = r^q + sum_i rows[q, i] x_i^q."""

    rows: Tensor  # (Q, m): D c
    targets: Tensor  # (Q, m): rho-bar, zero for inactive rows
    active: Tensor  # (Q, m) bool
    rank: Tensor  # (Q,)
    correction_norm: Tensor  # (Q,): ||U^T c||
    trusted: Tensor  # (Q,) bool: the Gram matrix tells this layer's products to rounding


def project(
    cohort: Cohort,
    targets: Tensor,
    reference_dots: Tensor,
    *,
    tau: float,
    eps: float,
    constraint: Constraint = "equal",
    renormalise: bool = True,
) -> Projection:
    """Solve every layer's correction problem (eq. 4.4) over its active set (appendix B.3).

    ``targets`` (m,) are rho; ``reference_dots`` (Q, m) are <x_i^q, r^q>. Rows shorter than ``tau``
    get no constraint and, if ``renormalise``, their targets are shared out among the others. Where
    the targets cannot be met together, ``equal`` gives least squares and ``at_least`` the least
    violation.
    """
    grams = cohort.grams  # before the norms, which are then their diagonals
    norms = cohort.square_norms.sqrt()
    active = (norms >= tau) & (norms > 0)
    shares = _renormalised(targets, active) if renormalise else targets * active
    scale = torch.where(active, 1 / (norms + eps).clamp(min=torch.finfo(norms.dtype).tiny), 0)
    kernel = _unit_kernel(grams, scale, active)
    gap = torch.where(active, shares - scale * reference_dots, 0)
    problem = _Problem(cohort, kernel, gap, active, scale)
    solve = _solve_equal if constraint == "equal" else _solve_at_least
    trusted = trusted_solve(kernel, gap, cohort.matrix.dtype)
    coefficients, rank = solve(problem, trusted)
    correction = (coefficients * (kernel @ coefficients.unsqueeze(-1)).squeeze(-1)).sum(-1)
    return Projection(
        rows=scale * coefficients,
        targets=shares,
        active=active,
        rank=rank,
        correction_norm=correction.clamp(min=0).sqrt(),
        trusted=trusted.trusted,
    )


@dataclass(frozen=True)
class _Problem:
    cohort: Cohort
    kernel: Tensor
    gap: Tensor
    active: Tensor
    scale: Tensor

    def precise_kernel(self, layer: int) -> Tensor:
        """Recompute one layer's K in float64."""
        if self.cohort.matrix.dtype == torch.float64:
            return self.kernel[layer]
        gram = self.cohort.precise_gram(layer).unsqueeze(0)
        return _unit_kernel(gram, self.scale[layer : layer + 1], self.active[layer : layer + 1])[0]


def _renormalised(targets: Tensor, active: Tensor) -> Tensor:
    shares = torch.where(active, targets, 0)
    total = shares.sum(-1, keepdim=True)
    uniform = active / active.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(total > 0, shares / torch.where(total > 0, total, 1), uniform)


def _unit_kernel(grams: Tensor, scale: Tensor, active: Tensor) -> Tensor:
    kernel = grams * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    # An inactive row becomes an equation c_i = 0 of its own, so all layers keep the same size.
    return kernel + torch.diag_embed((~active).to(kernel.dtype))


def _solve_equal(problem: _Problem, solved: TrustedSolve) -> tuple[Tensor, Tensor]:
    coefficients = solved.coefficients
    rank = problem.active.sum(-1)
    for layer in torch.nonzero(~solved.trusted).flatten().tolist():
        coefficients[layer], rank[layer] = _solve_carefully(problem, layer)
    return coefficients, rank


def _solve_carefully(problem: _Problem, layer: int) -> tuple[Tensor, int]:
    """Apply the pseudo-inverse with its own cut-off max(m, d_q) eps sigma_max to one layer."""
    rows = torch.nonzero(problem.active[layer]).flatten()
    coefficients = torch.zeros_like(problem.gap[layer])
    if len(rows) == 0:
        return coefficients, 0
    dtype = problem.cohort.matrix.dtype
    cutoff = max(len(rows), problem.cohort.layout.sizes[layer]) * torch.finfo(dtype).eps
    gap = problem.gap[layer][rows]
    if dtype == torch.float64 and problem.cohort.in_memory:
        units = problem.scale[layer].unsqueeze(-1) * problem.cohort.block(layer)
        solution, rank = singular_solve(units[rows], gap, cutoff)
    else:
        kernel = problem.precise_kernel(layer)[rows][:, rows]
        solution, rank = eigen_solve(kernel, gap, cutoff)
    coefficients[rows] = solution
    return coefficients, rank


def _solve_at_least(problem: _Problem, solved: TrustedSolve) -> tuple[Tensor, Tensor]:
    from fedcraft.linalg.at_least import at_least_dual

    coefficients = torch.zeros_like(problem.gap)
    for layer, plain in enumerate(solved.trusted.tolist()):
        rows = torch.nonzero(problem.active[layer]).flatten()
        if len(rows):
            kernel = problem.kernel[layer] if plain else problem.precise_kernel(layer)
            kernel = kernel[rows][:, rows]
            coefficients[layer, rows] = at_least_dual(kernel, problem.gap[layer][rows])
    return coefficients, (coefficients != 0).sum(-1)
