"""What counts as rounding: the thresholds that all rules share."""

from __future__ import annotations

import torch
from torch import Tensor

_CANCELLING = 50  # times shorter than its terms: float32 then has five digits left


def rounding(dtype: torch.dtype) -> float:
    """Return the relative size below which a product multiplied in ``dtype`` is rounding."""
    return 16 * torch.finfo(dtype).eps


def cancels(terms: Tensor, squares: Tensor) -> Tensor:
    """Mark sums, of squared length ``squares``, that are too short for float32 beside their terms.

    ``terms`` are the summed lengths of each sum's terms.
    """
    return terms > _CANCELLING * squares.clamp(min=0).sqrt()


def vanishes(squares: Tensor, dtype: torch.dtype) -> Tensor:
    """Mark squares below the smallest normal number of ``dtype``, which have lost their digits."""
    return squares < torch.finfo(dtype).tiny
