"""Every method of the paper behind one interface, and any combination of their parts."""

from fedcraft.methods.method import Method, Override, Part
from fedcraft.methods.table import markdown_table, method, methods

__all__ = ["Method", "Override", "Part", "markdown_table", "method", "methods"]
