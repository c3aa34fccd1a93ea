"""Gram matrices by block, pseudo-inverse through the small side, projections.

``minnorm`` and ``at_least`` are imported by who needs them: they load scipy, which takes a while.
"""

from fedcraft.linalg.alignment import TrustedSolve, eigen_solve, singular_solve, trusted_solve
from fedcraft.linalg.blocks import (
    block_combine,
    block_dots,
    block_grams,
    block_square_norms,
    finite_products,
    without_vanishing,
)
from fedcraft.linalg.simplex import project_simplex

__all__ = [
    "TrustedSolve",
    "block_combine",
    "block_dots",
    "block_grams",
    "block_square_norms",
    "eigen_solve",
    "finite_products",
    "project_simplex",
    "singular_solve",
    "trusted_solve",
    "without_vanishing",
]
