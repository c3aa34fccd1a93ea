"""Aggregation rules, one per file: (updates, weights, losses ...) -> direction and certificate.

``RULES`` is the table of names; a new rule adds its file, its test and one line here.
"""

from __future__ import annotations

from typing import Any

from fedcraft.aggregators.base import Aggregator, Outcome, State, Step
from fedcraft.aggregators.certificate import Certificate
from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.guards import GUARDS, Guard, guard
from fedcraft.aggregators.wrapper import Wrapper
from fedcraft.registry import build

__all__ = [
    "GUARDS",
    "RULES",
    "Aggregator",
    "Certificate",
    "Cohort",
    "Guard",
    "Outcome",
    "State",
    "Step",
    "Wrapper",
    "aggregator",
    "guard",
]

RULES: dict[str, str] = {
    "adafed": "fedcraft.aggregators.adafed:AdaFed",
    "afl": "fedcraft.aggregators.afl:AFL",
    "aligned_mtl": "fedcraft.aggregators.aligned_mtl:AlignedMTL",
    "average": "fedcraft.aggregators.average:Average",
    "bulyan": "fedcraft.aggregators.bulyan:Bulyan",
    "cagrad": "fedcraft.aggregators.cagrad:CAGrad",
    "config": "fedcraft.aggregators.config_rule:ConFIG",
    "coordinate_median": "fedcraft.aggregators.coordinate_median:CoordinateMedian",
    "craft": "fedcraft.aggregators.craft:Craft",
    "dualproj": "fedcraft.aggregators.dualproj:DualProj",
    "fairgrad": "fedcraft.aggregators.fairgrad:FairGrad",
    "feddyn": "fedcraft.aggregators.feddyn:FedDynServer",
    "fedfv": "fedcraft.aggregators.fedfv:FedFV",
    "fedgh": "fedcraft.aggregators.fedgh:FedGH",
    "fedlf": "fedcraft.aggregators.fedlf:FedLF",
    "fedmdfg": "fedcraft.aggregators.fedmdfg:FedMDFG",
    "fedmgda": "fedcraft.aggregators.fedmgda:FedMGDA",
    "fednova": "fedcraft.aggregators.fednova:FedNova",
    "gradvac": "fedcraft.aggregators.gradvac:GradVac",
    "imtl_g": "fedcraft.aggregators.imtl_g:IMTLG",
    "layer_momentum": "fedcraft.aggregators.layer_momentum:LayerMomentum",
    "nash_mtl": "fedcraft.aggregators.nash_mtl:NashMTL",
    "pcd": "fedcraft.aggregators.pcd:PCD",
    "pcgrad": "fedcraft.aggregators.pcgrad:PCGrad",
    "qfedavg": "fedcraft.aggregators.qfedavg:QFedAvg",
    "scaffold": "fedcraft.aggregators.scaffold:ScaffoldServer",
    "term": "fedcraft.aggregators.term:TERM",
    "trimmed_mean": "fedcraft.aggregators.trimmed_mean:TrimmedMean",
    "upgrad": "fedcraft.aggregators.upgrad:UPGrad",
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
