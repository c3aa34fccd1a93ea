"""Differential privacy of clients: clipping, noise, and an account of the budget."""

from fedcraft.privacy.accounting import Accountant, noise_for
from fedcraft.privacy.options import Privacy

__all__ = ["Accountant", "Privacy", "noise_for"]
