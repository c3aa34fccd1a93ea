"""The paper's models, custom ones by import path, and any of them as one flat vector."""

from fedcraft.models.factory import build, models, seeded
from fedcraft.models.flat import FlatModel
from fedcraft.models.norms import has_batchnorm, replace_batchnorm

__all__ = ["FlatModel", "build", "has_batchnorm", "models", "replace_batchnorm", "seeded"]
