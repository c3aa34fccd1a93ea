"""Every method of the paper behind one interface, and any combination of their parts."""

from fedcraft.methods.lookup import markdown_table, method, method_title, methods, mixture_name
from fedcraft.methods.method import Method, Override, Part

__all__ = [
    "Method",
    "Override",
    "Part",
    "markdown_table",
    "method",
    "method_title",
    "methods",
    "mixture_name",
]
