"""The projection shared by CRAFT and ConFIG: the closest point to a reference that meets targets.

Everything happens on the Gram matrices G_q = X_q X_q^T. With D = diag(1 / (||x_i|| + eps)) the unit
rows are U = D X, so K = D G D, U r = D X r, and the answer is r + X^T (D c).

Where rows nearly depend on each other, c = K^+ b grows like 1 / sigma^2 and cancels in U^T c, a
vector of size 1 / sigma. Such layers are solved with care, and in memory leave here multiplied out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort, Vector
from fedcraft.linalg import eigen_solve, singular_solve, trusted_solve

__all__ = ["WIDEST", "Constraint", "Projection", "project"]

Constraint = Literal["equal", "at_least"]
# The cut-off of ``torch.linalg.pinv`` grows with the layer: in float32 it is 4e-3 of the largest
# singular value for 37,000 coordinates, where a hundred clients that mostly agree have smaller ones
# of their own, and from 2^23 on it drops everybody. Rounding does not grow so: rows are rounded
# number by number. The price of the smaller cut-off are longer steps, up to its inverse.
WIDEST = 1024


@dataclass(frozen=True)
class Projection:
    """The answer by layer: g^q = r^q + sum_i rows[q, i] x_i^q + vectors[q]."""

    rows: Tensor  # (Q, m): D c, zero in layers with a vector
    vectors: dict[int, Tensor]  # U^T c in float64 where coefficients would lose it
    targets: Tensor  # (Q, m): rho-bar, zero for inactive rows
    active: Tensor  # (Q, m) bool
    rank: Tensor  # (Q,)
    correction_norm: Tensor  # (Q,): ||U^T c||
    trusted: Tensor  # (Q,) bool: the Gram matrix tells this layer's products to rounding

    def complete(self, cohort: Cohort, direction: Vector, dots: Tensor, square: Tensor) -> None:
        """Add the vectors to a combination of the rows; measure g in the layers not trusted.

        There <x_i, g> and ||g||^2 cannot be told from coefficients: ``dots`` and ``square`` are
        corrected in place.
        """
        for layer, vector in self.vectors.items():
            direction[cohort.layout.slices[layer]] += vector.to(direction.device)
        for layer in torch.nonzero(~self.trusted).flatten().tolist():
            dots[layer] = cohort.layer_dots(layer, direction)
            square[layer] = cohort.layer_length(layer, direction) ** 2


def project(
    cohort: Cohort,
    targets: Tensor,
    reference_dots: Tensor,
    *,
    tau: float,
    eps: float,
    constraint: Constraint = "equal",
    renormalise: bool = True,
    widest: float = WIDEST,
) -> Projection:
    """Solve every layer's correction problem (eq. 4.4) over its active set (appendix B.3).

    ``targets`` (m,) are rho; ``reference_dots`` (Q, m) are <x_i^q, r^q>. Rows shorter than ``tau``
    get no constraint and, if ``renormalise``, their targets are shared out among the others. Where
    the targets cannot be met together, ``equal`` gives least squares and ``at_least`` the least
    violation. Singular values of a layer's m active unit rows below max(m, min(d_q, ``widest``))
    eps of the largest count as zero (for ``at_least`` in the rank only); with ``widest=math.inf``
    that is what ``torch.linalg.pinv`` does.
    """
    grams = cohort.grams  # before the norms, which are then their diagonals
    norms = cohort.square_norms.sqrt()
    active = (norms >= tau) & (norms > 0)
    shares = _renormalised(targets, active) if renormalise else targets * active
    scale = torch.where(active, 1 / (norms + eps).clamp(min=torch.finfo(norms.dtype).tiny), 0)
    kernel = _unit_kernel(grams, scale, active)
    gap = torch.where(active, shares - scale * reference_dots, 0)
    cutoffs = _cutoffs(cohort, active, widest)
    solved = trusted_solve(kernel, gap, cohort.matrix.dtype, cutoffs)
    coefficients = solved.coefficients
    if constraint == "at_least":
        coefficients = _one_sided(kernel, gap, active, solved.trusted)
    rank = active.sum(-1)
    square = (coefficients * (kernel @ coefficients.unsqueeze(-1)).squeeze(-1)).sum(-1)
    careful = {
        q: _Layer(cohort, q, active[q], scale[q], gap[q], constraint, float(cutoffs[q])).solve()
        for q in torch.nonzero(~solved.trusted).flatten().tolist()
    }
    for q, answer in careful.items():
        coefficients[q], rank[q], square[q] = answer.rows, answer.rank, answer.square
    return Projection(
        rows=scale * coefficients,
        vectors={q: answer.vector for q, answer in careful.items() if answer.vector is not None},
        targets=shares,
        active=active,
        rank=rank,
        correction_norm=square.clamp(min=0).sqrt(),
        trusted=solved.trusted,
    )


def _cutoffs(cohort: Cohort, active: Tensor, widest: float) -> Tensor:
    widths = torch.tensor(cohort.layout.sizes, dtype=torch.float64).clamp(max=widest)
    return torch.maximum(widths, active.sum(-1)) * torch.finfo(cohort.matrix.dtype).eps


def _renormalised(targets: Tensor, active: Tensor) -> Tensor:
    shares = torch.where(active, targets, 0)
    total = shares.sum(-1, keepdim=True)
    uniform = active / active.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(total > 0, shares / torch.where(total > 0, total, 1), uniform)


def _unit_kernel(grams: Tensor, scale: Tensor, active: Tensor) -> Tensor:
    kernel = grams * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    # An inactive row becomes an equation c_i = 0 of its own, so all layers keep the same size.
    return kernel + torch.diag_embed((~active).to(kernel.dtype))


def _one_sided(kernel: Tensor, gap: Tensor, active: Tensor, trusted: Tensor) -> Tensor:
    """Solve U g >= rho in the trusted layers; zero in the others."""
    from fedcraft.linalg.at_least import at_least_dual

    coefficients = torch.zeros_like(gap)
    for layer in torch.nonzero(trusted).flatten().tolist():
        rows = torch.nonzero(active[layer]).flatten()
        if len(rows):
            block = kernel[layer][rows][:, rows]
            coefficients[layer, rows] = at_least_dual(block, gap[layer][rows])
    return coefficients


@dataclass(frozen=True)
class _Answer:
    rows: Tensor  # (m,): c, zero if there is a vector
    rank: int
    square: float  # ||U^T c||^2
    vector: Tensor | None = None


@dataclass(frozen=True)
class _Layer:
    """One layer's problem where the Gram matrix at hand is not precise enough."""

    cohort: Cohort
    layer: int
    active: Tensor
    scale: Tensor
    gap: Tensor
    constraint: Constraint
    cutoff: float

    def solve(self) -> _Answer:
        """Apply the pseudo-inverse."""
        nothing = torch.zeros_like(self.gap)
        rows = torch.nonzero(self.active).flatten()
        if len(rows) == 0:
            return _Answer(nothing, 0, 0.0)
        scale, gap = self.scale[rows], self.gap[rows]
        if self.cohort.in_memory:
            units = scale.unsqueeze(-1) * self.cohort.block(self.layer)[rows]
            vector, rank = self._on_units(units, gap)
            return _Answer(nothing, rank, float(vector @ vector), vector)
        gram = self.cohort.precise_gram(self.layer)[rows][:, rows]
        kernel = gram * scale.unsqueeze(-1) * scale
        coefficients, rank = self._on_kernel(kernel, gap)
        square = float(coefficients @ kernel @ coefficients)
        return _Answer(nothing.index_copy(0, rows, coefficients), rank, square)

    def _on_units(self, units: Tensor, gap: Tensor) -> tuple[Tensor, int]:
        """Return U^T c and the rank of float64 rows U."""
        if self.cohort.matrix.dtype != torch.float64:  # float64 holds the squares of float32
            coefficients, rank = self._on_kernel(units @ units.T, gap)
            return units.T @ coefficients, rank
        vector, rank = singular_solve(units, gap, self.cutoff)
        if self.constraint == "at_least":
            vector = units.T @ self._on_kernel(units @ units.T, gap)[0]
        return vector, rank

    def _on_kernel(self, kernel: Tensor, gap: Tensor) -> tuple[Tensor, int]:
        coefficients, rank = eigen_solve(kernel, gap, self.cutoff)
        if self.constraint == "at_least":
            from fedcraft.linalg.at_least import at_least_dual

            coefficients = at_least_dual(kernel, gap)
        return coefficients, rank
