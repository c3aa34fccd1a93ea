"""Secure rounds on a real federation."""
