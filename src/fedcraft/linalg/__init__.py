"""Linear algebra of the rules: products by layer, projections from Gram matrices, simplex.

Import ``minnorm`` and ``at_least`` only where they are needed: they load scipy, which is slow.
"""

from fedcraft.linalg.blocks import (
    block_combine,
    block_dots,
    block_grams,
    block_square_norms,
    finite_products,
    layer_combine,
    layer_dots,
    layer_gram,
    without_vanishing,
)
from fedcraft.linalg.projection import WIDEST, Constraint, Projection, UnitRows, project
from fedcraft.linalg.pseudo_inverse import apply
from fedcraft.linalg.rounding import cancels, rounding
from fedcraft.linalg.simplex import project_simplex, shares
from fedcraft.linalg.unit import ratio, scaled_grams, unit_grams

__all__ = [
    "WIDEST",
    "Constraint",
    "Projection",
    "UnitRows",
    "apply",
    "block_combine",
    "block_dots",
    "block_grams",
    "block_square_norms",
    "cancels",
    "finite_products",
    "layer_combine",
    "layer_dots",
    "layer_gram",
    "project",
    "project_simplex",
    "ratio",
    "rounding",
    "scaled_grams",
    "shares",
    "unit_grams",
    "without_vanishing",
]
