"""The engine: what turns a method into a training run."""

from fedcraft.engine.settings import Settings

__all__ = ["Settings"]
