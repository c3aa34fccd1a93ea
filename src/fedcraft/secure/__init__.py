"""Secure aggregation: rules that combine updates which no server ever sees."""

from fedcraft.secure.options import Secure

__all__ = ["Secure"]
