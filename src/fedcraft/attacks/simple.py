"""Attacks of single clients on their own update: flipped, scaled, noise, false claims."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedcraft.attacks.base import Attack
from fedcraft.errors import require


class _Factor(Attack):
    def __init__(self, *, factor: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        require(factor > 0, "factor", "a number above 0", factor)
        self.factor = factor


class SignFlip(_Factor):
    """Send -k times the update, k = ``factor``: uphill instead of downhill."""

    def updates(self, own: Tensor, honest: Tensor, draw: torch.Generator) -> Tensor:
        return -self.factor * own


class Scaling(_Factor):
    """Send k times the update, k = ``factor``: model replacement (Bagdasaryan et al. 2020)."""

    def __init__(self, *, factor: float = 100.0, **options: Any) -> None:
        super().__init__(factor=factor, **options)

    def updates(self, own: Tensor, honest: Tensor, draw: torch.Generator) -> Tensor:
        return self.factor * own


class Gaussian(_Factor):
    """Send noise, ``factor`` times as long as the update."""

    def updates(self, own: Tensor, honest: Tensor, draw: torch.Generator) -> Tensor:
        noise = torch.randn(own.shape, generator=draw, dtype=own.dtype)
        lengths = torch.linalg.vector_norm(own, dim=1, keepdim=True)
        drawn = torch.linalg.vector_norm(noise, dim=1, keepdim=True)
        sent: Tensor = noise * (self.factor * lengths / drawn)
        return sent


class FalseClaims(Attack):
    """Train honestly, but claim a billion samples and a huge loss."""

    def __init__(
        self, *, samples: float | None = 1e9, loss: float | None = 1e3, **options: Any
    ) -> None:
        super().__init__(samples=samples, loss=loss, **options)
