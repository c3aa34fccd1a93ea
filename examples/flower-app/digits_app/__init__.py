"""Handwritten digits on Flower with fedcraft."""
