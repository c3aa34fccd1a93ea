"""Attacks: what hostile clients do in a simulation. Nothing here is part of a deployment.

``ATTACKS`` is the table of names; a new attack adds its class, its test and one line here.
"""

from __future__ import annotations

from typing import Any

from fedcraft.attacks.base import Attack, Attackers, left_out_shares
from fedcraft.registry import build

__all__ = ["ATTACKS", "Attack", "Attackers", "attack", "left_out_shares"]

ATTACKS: dict[str, str] = {
    "sign_flip": "fedcraft.attacks.simple:SignFlip",
    "scaling": "fedcraft.attacks.simple:Scaling",
    "gaussian": "fedcraft.attacks.simple:Gaussian",
    "false_claims": "fedcraft.attacks.simple:FalseClaims",
    "label_flip": "fedcraft.attacks.poisoning:LabelFlip",
    "backdoor": "fedcraft.attacks.poisoning:Backdoor",
    "copies": "fedcraft.attacks.collusion:SybilCopies",
    "veto": "fedcraft.attacks.collusion:Veto",
    "ipm": "fedcraft.attacks.collusion:InnerProduct",
    "alie": "fedcraft.attacks.collusion:ALIE",
    "min_max": "fedcraft.attacks.collusion:MinMax",
    "min_sum": "fedcraft.attacks.collusion:MinSum",
}


def attack(name: str, **params: Any) -> Attack:
    """Return an attack by its name in ``ATTACKS``, or a custom ``package.module:Class``.

    >>> attack("sign_flip", share=0.2).hostile(clients=10, seed=77).size
    2
    """
    built: Attack = build("attack", Attack, ATTACKS, name, params)
    return built
