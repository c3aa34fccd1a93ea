"""Gram matrices by block, pseudo-inverse through the small side, min-norm points, projections."""

from fedcraft.linalg.alignment import TrustedSolve, eigen_solve, singular_solve, trusted_solve
from fedcraft.linalg.blocks import block_combine, block_dots, block_grams, block_square_norms
from fedcraft.linalg.minnorm import min_norm_weights
from fedcraft.linalg.simplex import project_simplex

__all__ = [
    "TrustedSolve",
    "block_combine",
    "block_dots",
    "block_grams",
    "block_square_norms",
    "eigen_solve",
    "min_norm_weights",
    "project_simplex",
    "singular_solve",
    "trusted_solve",
]
