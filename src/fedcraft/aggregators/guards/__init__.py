"""Guards: what stands before a rule against clients that lie.

``GUARDS`` is the table of names; a new guard adds its file, its test and one line here.
"""

from __future__ import annotations

from typing import Any

from fedcraft.aggregators.guards.base import Guard, Judgement, Screening
from fedcraft.registry import build

__all__ = ["GUARDS", "Guard", "Judgement", "Screening", "guard"]

GUARDS: dict[str, str] = {
    "default": "fedcraft.aggregators.guards.answers:Answers",
    "none": "fedcraft.aggregators.guards.size_cap:NoGuard",
    "size_cap": "fedcraft.aggregators.guards.size_cap:SizeCap",
    "krum": "fedcraft.aggregators.guards.krum:Krum",
    "multi_krum": "fedcraft.aggregators.guards.krum:MultiKrum",
    "geometric_median": "fedcraft.aggregators.guards.geometric_median:GeometricMedian",
    "centred_clipping": "fedcraft.aggregators.guards.centred_clipping:CentredClipping",
    "norm_clipping": "fedcraft.aggregators.guards.norm_clipping:NormClipping",
    "cosine": "fedcraft.aggregators.guards.cosine:Cosine",
    "answers": "fedcraft.aggregators.guards.answers:Answers",
    "copies": "fedcraft.aggregators.guards.copies:Copies",
    "trust": "fedcraft.aggregators.guards.trust:Trust",
}


def guard(name: str, **params: Any) -> Guard:
    """Return a fresh guard by its name in ``GUARDS``, or a custom ``package.module:Class``.

    >>> from fedcraft import aggregator
    >>> craft = aggregator("craft").guarded(guard("multi_krum", hostile=1))
    >>> step = craft.aggregate([[1.0, 0.1], [0.9, 0.2], [1.0, 0.0], [-9.0, 0.0]])
    >>> list(step.certificate.left_out)
    [3]
    """
    built: Guard = build("guard", Guard, GUARDS, name, params)
    return built
