"""Scaled rows, such as unit updates, on their Gram matrices; quotients that leave zeros alone."""

from __future__ import annotations

import torch
from torch import Tensor


def ratio(numerator: Tensor | float, denominator: Tensor) -> Tensor:
    """Return a / b, and zero where b is not above zero."""
    return torch.where(denominator > 0, numerator / denominator, 0)


def unit_grams(grams: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Gram matrices of unit updates, and 1 / ||g_i||; both are zero for zero updates."""
    inverse = ratio(1, grams.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt())
    return scaled_grams(grams, inverse), inverse


def scaled_grams(grams: Tensor, scale: Tensor) -> Tensor:
    """Return D G D with D = diag(scale): the Gram matrices of scaled rows."""
    return (grams * scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2))
