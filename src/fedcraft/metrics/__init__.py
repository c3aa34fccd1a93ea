"""Fairness of per-client accuracies."""

from fedcraft.metrics.fairness import summarise

__all__ = ["summarise"]
