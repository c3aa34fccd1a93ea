"""Aggregation rules, one per file: (updates, weights, losses ...) -> direction and certificate.

``RULES`` is the table of names; a new rule adds its file, its test and one line here.
"""

from __future__ import annotations

from typing import Any

from fedcraft.aggregators.base import Aggregator, Outcome, State, Step
from fedcraft.aggregators.certificate import Certificate
from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.wrapper import Wrapper
from fedcraft.registry import build

__all__ = [
    "RULES",
    "Aggregator",
    "Certificate",
    "Cohort",
    "Outcome",
    "State",
    "Step",
    "Wrapper",
    "aggregator",
]

RULES: dict[str, str] = {
    "afl": "fedcraft.aggregators.afl:AFL",
    "average": "fedcraft.aggregators.average:Average",
    "config": "fedcraft.aggregators.config_rule:ConFIG",
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
    """Return a fresh aggregator by its name in ``RULES``, or a custom ``package.module:Class``.

    >>> import numpy as np
    >>> craft = aggregator("craft")
    >>> step = craft.aggregate(np.array([[1.0, 0.0], [-0.6, 0.8]]))
    >>> step.certificate.conflict_free
    True
    """
    built: Aggregator = build("aggregator", Aggregator, RULES, name, params)
    return built
