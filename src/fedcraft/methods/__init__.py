"""Every method of the paper behind one interface, and any combination of their parts."""

import sys
from types import ModuleType

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


class _Package(ModuleType):
    """``fedcraft.methods`` is this package; ``fedcraft.methods()`` lists the methods."""

    def __call__(self) -> tuple[Method, ...]:
        return methods()


sys.modules[__name__].__class__ = _Package
