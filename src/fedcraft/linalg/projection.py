"""The closest point to a reference that meets alignment targets, from Gram matrices.

With X the rows of a layer, D = diag(1 / (||x_i|| + eps)) and U = D X, the point is r + U^T c with

    c = K^+ (rho - U r),      K = U U^T = D (X X^T) D,

so only m x m matrices are factorised, and the answer is r + X^T (D c).

Where rows nearly depend on each other, c grows like 1 / sigma^2, and so does the effect of rounded
products. Such layers are not ``trusted``. Most only need a correction: the products of the answer
are measured on the rows, and the difference is solved for again. The others are solved on float64
products; for float64 rows U^T c itself is returned, from their singular values.

Rows that nearly coincide but have different targets would make U^T c as long as 1 / sigma, and two
clients can cause that on purpose. A ``gain`` bounds it: singular values below 1 / gain count as
sigma_0^2 / sigma with sigma_0 = 1 / gain, which on K means that no eigenvalue counts for less than
sigma_0^2. Then ||U^T c|| <= gain ||rho - U r||, the answer changes continuously with the rows, and
it is exact wherever no singular value lies below 1 / gain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from fedcraft.linalg.pseudo_inverse import (
    CholeskySolution,
    apply,
    cholesky_solve,
    eigen_solve,
    raised,
    singular_solve,
)
from fedcraft.linalg.unit import scaled_grams

Constraint = Literal["equal", "at_least"]
Measure = Callable[[Tensor, Sequence[int]], Mapping[int, Tensor]]
"""From coefficients c (Q, m) to the precise products <x_i^q, r^q + X_q^T c^q> of some layers."""
# The cut-off of ``torch.linalg.pinv`` grows with the layer: in float32 it is 4e-3 of the largest
# singular value for 37,000 coordinates, where a hundred clients that mostly agree have smaller
# ones, and from 2^23 coordinates on it drops all of them. Rounding does not grow so: rows are
# rounded number by number. The smaller cut-off allows longer steps, up to its inverse.
WIDEST = 1024


@dataclass(frozen=True)
class UnitRows:
    """U = D X by layer, as far as Gram matrices show it."""

    active: Tensor  # (Q, m) bool: the rows that have a direction
    scale: Tensor  # (Q, m): the diagonal of D, zero for inactive rows
    kernel: Tensor  # (Q, m, m): K = U U^T; an inactive row is a unit row, orthogonal to all others

    @classmethod
    def of(
        cls,
        grams: Tensor,
        tau: float = 0.0,
        eps: float = 0.0,
        square_norms: Tensor | None = None,
    ) -> UnitRows:
        """Take the rows of ``grams`` = X_q X_q^T; those shorter than ``tau`` are inactive.

        ``square_norms`` (Q, m) replace the diagonals where those are only estimates.
        """
        squares = torch.diagonal(grams, dim1=1, dim2=2) if square_norms is None else square_norms
        norms = squares.clamp(min=0).sqrt()
        active = (norms >= tau) & (norms > 0)
        scale = torch.where(active, 1 / (norms + eps).clamp(min=torch.finfo(norms.dtype).tiny), 0)
        kernel = scaled_grams(grams, scale)
        # An inactive row becomes the separate equation c_i = 0, so all layers keep the same size.
        kernel.diagonal(dim1=1, dim2=2).add_(~active)
        return cls(active, scale, kernel)

    def renormalised(self, targets: Tensor) -> Tensor:
        """Targets that sum to one over a layer's active rows; equal ones where all are zero."""
        kept = torch.where(self.active, targets, 0)
        total = kept.sum(-1, keepdim=True)
        equal = self.active.to(targets.dtype) / self.active.sum(-1, keepdim=True).clamp(min=1)
        return torch.where(total > 0, kept / torch.where(total > 0, total, 1), equal)


@dataclass(frozen=True)
class Projection:
    """The correction by layer: Delta^q = sum_i coefficients[q, i] x_i^q + vectors[q]."""

    coefficients: Tensor  # (Q, m): D c, zero in layers with a vector
    targets: Tensor  # (Q, m): rho-bar, zero for inactive rows
    active: Tensor  # (Q, m) bool
    rank: Tensor  # (Q,)
    norm: Tensor  # (Q,): ||Delta^q||
    trusted: Tensor  # (Q,) bool: the Gram matrices give this layer's solution to rounding
    one_sided: bool = False
    bounded: tuple[int, ...] = ()  # the layers in which the gain's limit acted
    vectors: dict[int, Tensor] = field(default_factory=dict)  # U^T c where coefficients lose it
    products: dict[int, Tensor] = field(default_factory=dict)  # precise <x_i, Delta>, (m,)

    def scaled(self, factors: Tensor) -> Projection:
        """Return what the targets and the length are once layer q is multiplied by f[q]."""
        targets = self.targets * factors.unsqueeze(-1)
        return replace(self, targets=targets, norm=self.norm * factors.abs())


def project(
    grams: Tensor,
    targets: Tensor,
    reference_dots: Tensor | None = None,
    *,
    constraint: Constraint = "equal",
    tau: float = 0.0,
    eps: float = 0.0,
    renormalise: bool = True,
    dtype: torch.dtype = torch.float64,
    widths: Sequence[int] | None = None,
    widest: float = WIDEST,
    gain: float | None = None,
    precise_gram: Callable[[int], Tensor] | None = None,
    block: Callable[[int], Tensor | None] | None = None,
    measure: Measure | None = None,
    square_norms: Tensor | None = None,
) -> Projection:
    """Solve every layer's correction problem (eq. 4.4) over its active set (appendix B.3).

    ``grams`` (Q, m, m) are X_q X_q^T in float64, ``targets`` (m,) or (Q, m) are rho, and
    ``reference_dots`` (Q, m) are <x_i^q, r^q>, zero if left out. Rows shorter than ``tau`` get no
    constraint and, if ``renormalise``, their targets are divided among the others. Where the
    targets cannot be met together, ``equal`` gives least squares and ``at_least`` the least
    violation.

    Singular values of a layer's m active unit rows below max(m, min(d_q, ``widest``)) eps of the
    largest count as zero (for ``at_least`` in the rank only), with d_q = ``widths[q]`` and the eps
    of ``dtype``, in which the rows were rounded; ``widest=math.inf`` is what ``torch.linalg.pinv``
    does. Layers that are not trusted are corrected with ``measure`` (if given and if that helps) or
    solved on ``precise_gram(q)``, X_q X_q^T in float64, or on ``block(q)``, X_q itself, where that
    is not None. ``gain`` bounds the correction's length. ``square_norms`` are those of the rows if
    the diagonals are only estimates.

    >>> gram = torch.tensor([[[1.0, -0.6], [-0.6, 1.0]]], dtype=torch.float64)
    >>> project(gram, torch.tensor([0.5, 0.5], dtype=torch.float64)).coefficients
    tensor([[1.2500, 1.2500]], dtype=torch.float64)
    """
    units = UnitRows.of(grams, tau, eps, square_norms)
    shared = units.renormalised(targets) if renormalise else targets * units.active
    products = torch.zeros_like(units.scale) if reference_dots is None else reference_dots
    gap = torch.where(units.active, shared - units.scale * products, 0)
    cutoffs = _cutoffs(widths or (1,) * len(grams), units.active, widest, dtype)
    floor = 0.0 if gain is None else 1 / gain
    system = _System(grams, units, products, shared, gap, constraint, cutoffs, floor)
    found = _from_grams(system, dtype, measure)
    again = set(torch.nonzero(~found.trusted).flatten().tolist()) - found.products.keys()
    gram = precise_gram or grams.__getitem__
    bounded = tuple(q for q in again if _solve_again(found, q, system.layer, gram, block))
    norm = found.norm.clamp(min=0).sqrt()
    return replace(found, coefficients=units.scale * found.coefficients, norm=norm, bounded=bounded)


@dataclass(frozen=True)
class _System:
    """The equations U (r + U^T c) = rho of every layer."""

    grams: Tensor  # (Q, m, m): X X^T
    units: UnitRows
    reference_dots: Tensor  # (Q, m): <x_i, r>
    targets: Tensor  # (Q, m): rho-bar, zero for inactive rows
    gap: Tensor  # (Q, m): rho-bar - U r, zero for inactive rows
    constraint: Constraint
    cutoffs: Tensor  # (Q,): the relative cut-off of U's singular values
    floor: float  # sigma_0, below which none counts; zero for no limit

    def layer(self, layer: int, rows: Tensor) -> _Layer:
        """Return the equations of these rows in one layer."""
        scale, gap = self.units.scale[layer, rows], self.gap[layer, rows]
        return _Layer(scale, gap, self.constraint, float(self.cutoffs[layer]), self.floor)


def _from_grams(system: _System, dtype: torch.dtype, measure: Measure | None) -> Projection:
    """Solve the layers for which ``system.grams`` are precise enough, some with corrections.

    Until :func:`project` returns, ``coefficients`` are c and ``norm`` holds squares.
    """
    kernel, active = system.units.kernel, system.units.active
    solved = cholesky_solve(kernel, system.gap, dtype, system.cutoffs, system.floor)
    coefficients, one_sided = solved.coefficients, system.constraint == "at_least"
    measured: dict[int, Tensor] = {}
    if one_sided:
        coefficients = _one_sided(kernel, system.gap, active, solved.trusted)
    elif measure is not None and bool(solved.corrections.any()):
        measured = _correct(solved, system, measure)
    square = (coefficients * apply(kernel, coefficients)).sum(-1)
    for layer, dots in measured.items():
        square[layer] = coefficients[layer] @ (system.units.scale[layer] * dots)
    rank = active.sum(-1)
    found = (coefficients, system.targets, active, rank, square, solved.trusted)
    return Projection(*found, one_sided=one_sided, products=measured)


def _correct(solved: CholeskySolution, system: _System, measure: Measure) -> dict[int, Tensor]:
    """Improve ``solved.coefficients`` in place: c <- c + K^-1 (rho - U g), with U g measured.

    Returns <x_i, Delta> for the layers concerned; only the small last change comes from the Gram
    matrices.
    """
    products: dict[int, Tensor] = {}
    scale = system.units.scale
    for turn in range(int(solved.corrections.max())):
        layers = torch.nonzero(solved.corrections > turn).flatten().tolist()
        rows = torch.zeros_like(scale)
        rows[layers] = scale[layers] * solved.coefficients[layers]
        for layer, dots in measure(rows, layers).items():
            missing = (scale[layer] > 0) * system.targets[layer] - scale[layer] * dots
            change = solved.inverse[layer] @ missing
            solved.coefficients[layer] += change
            own = dots - system.reference_dots[layer]
            products[layer] = own + system.grams[layer] @ (scale[layer] * change)
    return products


def _solve_again(
    found: Projection,
    layer: int,
    part_of: Callable[[int, Tensor], _Layer],
    gram: Callable[[int], Tensor],
    block: Callable[[int], Tensor | None] | None,
) -> bool:
    """Fill in one layer with more digits; return whether the gain's limit acted."""
    found.coefficients[layer] = 0
    rows = torch.nonzero(found.active[layer]).flatten()
    if len(rows) == 0:
        return False
    part = part_of(layer, rows)
    known = block(layer) if block is not None else None
    if known is None:
        precise = gram(layer)
        solved = part.coefficients(precise[rows][:, rows])
        found.coefficients[layer, rows], found.rank[layer], found.norm[layer], limited = solved
        found.products[layer] = precise[:, rows] @ (part.scale * solved[0])
        return limited
    vector, found.rank[layer], limited = part.vector(known[rows])
    found.vectors[layer], found.norm[layer] = vector, vector @ vector
    return limited


def _cutoffs(widths: Sequence[int], active: Tensor, widest: float, dtype: torch.dtype) -> Tensor:
    sizes = torch.tensor(widths, dtype=torch.float64).clamp(max=widest)
    return torch.maximum(sizes, active.sum(-1)) * torch.finfo(dtype).eps


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
class _Layer:
    """One layer's problem on its active rows, where the given Gram matrix is too inexact."""

    scale: Tensor  # (k,): the diagonal of D
    gap: Tensor  # (k,): rho - U r
    constraint: Constraint
    cutoff: float
    floor: float  # sigma_0, below which no singular value counts; zero for no limit

    def coefficients(self, gram: Tensor) -> tuple[Tensor, int, Tensor, bool]:
        """Return c, the rank, ||U^T c||^2 and whether the limit acted, from X X^T."""
        kernel = scaled_grams(gram, self.scale)
        found, rank, limited = self._on_kernel(kernel)
        return found, rank, found @ kernel @ found, limited

    def vector(self, rows: Tensor) -> tuple[Tensor, int, bool]:
        """Return U^T c, the rank and whether the limit acted, from float64 rows."""
        units = self.scale.unsqueeze(-1) * rows
        vector, rank, limited = singular_solve(units, self.gap, self.cutoff, self.floor)
        if self.constraint == "at_least":
            vector = units.T @ self._on_kernel(units @ units.T)[0]
        return vector, rank, limited

    def _on_kernel(self, kernel: Tensor) -> tuple[Tensor, int, bool]:
        coefficients, rank, limited = eigen_solve(kernel, self.gap, self.cutoff, self.floor)
        if self.constraint == "at_least":
            from fedcraft.linalg.at_least import at_least_dual

            coefficients = at_least_dual(raised(kernel, self.floor), self.gap)
        return coefficients, rank, limited
