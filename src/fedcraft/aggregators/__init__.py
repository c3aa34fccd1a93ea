"""Aggregation rules: (updates, weights, losses ...) -> direction and certificate. One rule a file.

``RULES`` is the table of names; a new rule adds its file, its test and one line here.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from fedcraft.aggregators.base import Aggregator, Outcome, State, Step
from fedcraft.aggregators.certificate import Certificate
from fedcraft.aggregators.cohort import Cohort
from fedcraft.errors import InputError, require_numbers

__all__ = [
    "RULES",
    "Aggregator",
    "Certificate",
    "Cohort",
    "Outcome",
    "State",
    "Step",
    "aggregator",
    "register",
]

RULES: dict[str, str] = {
    "afl": "fedcraft.aggregators.afl:AFL",
    "average": "fedcraft.aggregators.average:Average",
    "config": "fedcraft.aggregators.config:ConFIG",
    "craft": "fedcraft.aggregators.craft:Craft",
    "fedfv": "fedcraft.aggregators.fedfv:FedFV",
    "fedlf": "fedcraft.aggregators.fedlf:FedLF",
    "fedmdfg": "fedcraft.aggregators.fedmdfg:FedMDFG",
    "fedmgda": "fedcraft.aggregators.fedmgda:FedMGDA",
    "fednova": "fedcraft.aggregators.fednova:FedNova",
    "layer_momentum": "fedcraft.aggregators.layer_momentum:LayerMomentum",
    "qfedavg": "fedcraft.aggregators.qfedavg:QFedAvg",
}


def aggregator(name: str, **params: Any) -> Aggregator:
    """Return a fresh aggregator by its name in ``RULES``.

    >>> import numpy as np
    >>> craft = aggregator("craft")
    >>> step = craft.aggregate(np.array([[1.0, 0.0], [-0.6, 0.8]]))
    >>> step.certificate.conflict_free
    True
    """
    if name not in RULES:
        near = difflib.get_close_matches(name, RULES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"aggregator: unknown rule {name!r}{hint} Known: {', '.join(RULES)}")
    module, _, attribute = RULES[name].partition(":")
    rule = getattr(importlib.import_module(module), attribute)
    try:
        built: Aggregator = rule(**params)
    except TypeError as error:
        require_numbers(rule, params)
        raise InputError(f"aggregator {name!r}: {error}") from error
    return built


def register(name: str, path: str) -> None:
    """Add a rule of your own under ``name``; ``path`` is ``"package.module:ClassName"``."""
    if name in RULES and RULES[name] != path:
        raise InputError(f"aggregator: {name!r} is taken by {RULES[name]}")
    RULES[name] = path
