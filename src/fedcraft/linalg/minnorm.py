"""The point of least norm in a convex hull, from the Gram matrix of its corners alone.

minimise ||sum_k x_k r_k||^2 = x^T G x  subject to  sum x = 1,  l <= x <= u.

Lower bounds only move the corners, and over a simplex the problem is one non-negative least squares
(Lawson and Hanson, ch. 23): ``_without_upper``. A primal active-set method then takes the upper
bounds into account; where none binds it polishes the answer to the rounding of G and stops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg.lapack import dposv, dpotrf
from scipy.optimize import nnls
from torch import Tensor

from fedcraft.errors import FedcraftError, InputError

Vector = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_EPS = float(np.finfo(np.float64).eps)
_WHOLE_STEPS = 2
_NOT_A_GRAM = "gram: it holds NaN or Inf, or is not a Gram matrix"


@dataclass(frozen=True)
class _Problem:
    gram: Vector
    regular: Vector  # gram with a ridge of the size of its rounding
    roots: Vector  # regular = roots^T roots
    lower: Vector
    upper: Vector

    @property
    def size(self) -> int:
        return len(self.gram)

    def slack(self, point: Vector) -> Vector:
        """Bounds of the rounding error of each entry of G x."""
        bound: Vector = 16 * _EPS * (np.abs(self.gram) @ np.abs(point))
        return bound

    def solve(self, free: Mask, right: Vector) -> Vector:
        """G_FF^-1 b for the regularised G: all its blocks are positive definite."""
        _, solution, failed = dposv(self.regular[np.ix_(free, free)], right, lower=1)
        if failed:
            raise FedcraftError("gram: a block of it is not positive definite")
        answer: Vector = solution
        return answer


def min_norm_weights(
    gram: Tensor, lower: Tensor | None = None, upper: Tensor | None = None
) -> Tensor:
    """Return x with sum x = 1, l <= x <= u that minimises x^T G x; the simplex without bounds.

    Exact up to the rounding of G; where nearly opposite corners cancel, what rounding leaves of
    their difference lets the free corners' <r_k, p> differ by about 1e-10 of the largest ||r_k||^2.
    Where the optimum is not unique (more corners than dimensions, equal corners) one of the optimal
    x is returned: the point p = sum_k x_k r_k is unique, x is not. Without bounds every corner
    obeys <r_k, p> >= ||p||^2. Cost O(m^3).

    >>> min_norm_weights(torch.tensor([[1.0, 0.0], [0.0, 4.0]]))
    tensor([0.8000, 0.2000], dtype=torch.float64)
    """
    problem = _problem(gram, lower, upper)
    return torch.from_numpy(_descend(problem, _feasible(problem, _without_upper(problem))))


def _problem(gram: Tensor, lower: Tensor | None, upper: Tensor | None) -> _Problem:
    matrix = gram.detach().to("cpu", torch.float64).numpy()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"gram: expected a square matrix, found shape {matrix.shape}")
    size = len(matrix)
    low = np.zeros(size) if lower is None else lower.detach().to(torch.float64).numpy()
    high = np.ones(size) if upper is None else upper.detach().to(torch.float64).numpy()
    if bool((low > high).any()) or low.sum() > 1 + 1e-9 or high.sum() < 1 - 1e-9:
        raise InputError("lower, upper: no x with sum x = 1 lies between them")
    return _Problem(*_convex(matrix), low, high)


def _convex(matrix: Vector) -> tuple[Vector, Vector, Vector]:
    """Return G scaled to 1, with a ridge, and the root of that.

    A Gram matrix rounded to float32 may be asymmetric and have negative eigenvalues: they are
    clipped.
    """
    largest = matrix.diagonal().max()
    if not np.isfinite(matrix).all() or largest < 0:
        raise FedcraftError(_NOT_A_GRAM)
    gram = np.eye(len(matrix)) if largest == 0 else (matrix + matrix.T) / (2 * largest)
    regular = _with_ridge(gram)
    root, failed = dpotrf(regular, clean=1)
    if failed:
        gram = _clip_eigenvalues(gram)
        regular = _with_ridge(gram)
        root, failed = dpotrf(regular, clean=1)
    if failed:
        raise FedcraftError(_NOT_A_GRAM)
    return gram, regular, root


def _with_ridge(gram: Vector) -> Vector:
    """Lengthen every corner slightly; a zero corner by as much as the shortest other one."""
    regular, squares = gram.copy(), gram.diagonal()
    least = squares[squares > 0].min()
    ridge = 16 * len(gram) * _EPS
    regular[np.diag_indices_from(regular)] = squares * (1 + ridge) + _EPS * _EPS * least
    return regular


def _clip_eigenvalues(gram: Vector) -> Vector:
    """Return the nearest positive semi-definite matrix, judged with rows of unit length."""
    norms = np.sqrt(np.maximum(gram.diagonal(), np.finfo(np.float64).tiny))
    values, vectors = np.linalg.eigh(gram / np.outer(norms, norms))
    roots = norms[:, None] * vectors * np.sqrt(np.clip(values, 0, None))
    clipped: Vector = roots @ roots.T
    return (clipped + clipped.T) / 2


def _without_upper(problem: _Problem) -> Vector:
    """Solve with x >= l alone: x = l + s z with z in the simplex of the corners l + s e_k."""
    spare = max(1 - problem.lower.sum(), 0.0)
    corners = spare * problem.roots + (problem.roots @ problem.lower)[:, None]
    # The least corner has length 1, so the answer's length and the sum weigh alike.
    shortest = np.linalg.norm(corners, axis=0).min()
    system = np.vstack([corners / (shortest if shortest > 0 else 1.0), np.ones(problem.size)])
    target = np.zeros(len(system))
    target[-1] = 1
    try:
        share, _ = nnls(system, target)
    except RuntimeError:  # too many exchanges: the descent starts from the middle instead
        share = np.ones(problem.size)
    point: Vector = problem.lower + spare * share / share.sum()
    return point


def _feasible(problem: _Problem, point: Vector) -> Vector:
    """Bring a point between the bounds and its sum back to one, leaving zeros alone if it can."""
    point = np.clip(point, problem.lower, problem.upper)
    missing = 1 - point.sum()
    if missing <= 0:
        room = point - problem.lower
    else:
        room = np.where(point > problem.lower, problem.upper - point, 0)
        room = room if room.sum() >= missing else problem.upper - point
    total = room.sum()
    return point + missing * room / total if total > 0 else point


def _descend(problem: _Problem, point: Vector) -> Vector:
    """Primal active-set method from a feasible point: every step lowers x^T G x."""
    free = (point > problem.lower) & (point < problem.upper)
    steps = 0  # full steps on this face: the second corrects the rounding of the first
    for _ in range(50 + 20 * problem.size):
        gradient, slack = problem.gram @ point, problem.slack(point)
        if steps == _WHOLE_STEPS or _flat(gradient, slack, free):
            released = _most_wrong(problem, point, gradient, slack, free)
            if not released.any():
                break
            free, steps = free | released, 0
        point, kept = _advance(problem, point, gradient, free)
        steps = steps + 1 if kept.sum() == free.sum() else 0
        free = kept
    return _summing_to_one(problem, point)


def _summing_to_one(problem: _Problem, point: Vector) -> Vector:
    """Restore the sum after long steps between nearly opposite corners; bounds stay active."""
    missing = 1 - point.sum()
    room = np.minimum(point - problem.lower, problem.upper - point)
    if not problem.size * _EPS < abs(missing) <= room.sum():
        return point
    whole: Vector = point + missing * room / room.sum()
    return whole


def _flat(gradient: Vector, slack: Vector, free: Mask) -> bool:
    if not free.any():
        return True
    inside = gradient[free]
    return bool(inside.max() - inside.min() <= 2 * slack[free].max())


def _most_wrong(
    problem: _Problem, point: Vector, gradient: Vector, slack: Vector, free: Mask
) -> Mask:
    """Mark the bound whose release lowers the norm fastest: a pair of them when none is free."""
    released = np.zeros(problem.size, dtype=bool)
    rises = np.where(free | (point >= problem.upper), np.inf, gradient + slack)
    falls = np.where(free | (point <= problem.lower), -np.inf, gradient - slack)
    up, down = int(rises.argmin()), int(falls.argmax())
    if not free.any():
        released[[up, down]] = falls[down] > rises[up]
        return released
    level = float(gradient[free].mean())
    gain, best = max((level - rises[up], up), (falls[down] - level, down))
    released[best] = gain > float(slack[free].max())
    return released


def _advance(problem: _Problem, point: Vector, gradient: Vector, free: Mask) -> tuple[Vector, Mask]:
    """Go towards the minimum on the free entries, as far as the bounds allow."""
    ones, bent = problem.solve(free, np.stack([np.ones(free.sum()), gradient[free]], axis=1)).T
    step = np.zeros(problem.size)
    step[free] = bent.sum() / ones.sum() * ones - bent
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        room = np.where(step < 0, problem.lower - point, problem.upper - point) / step
    room = np.where(free & (step != 0), room, np.inf)
    length = min(1.0, float(room.min()))
    blocked = room <= length
    bound = np.where(step < 0, problem.lower, problem.upper)
    return np.where(blocked, bound, point + length * step), free & ~blocked
