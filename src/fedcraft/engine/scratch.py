"""The model a worker trains everybody with."""

from __future__ import annotations

from torch import nn

from fedcraft.models.flat import FlatModel

__all__ = ["scratch_model"]


def scratch_model(module: nn.Module) -> FlatModel:
    """Make ``module`` the scratch model of a bench; it is changed in place."""
    return FlatModel(module)
