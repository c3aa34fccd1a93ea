"""A small secure round whose exchange can lose clients and lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcraft.aggregators.inputs import RoundInput
from fedcraft.secure import Secure
from fedcraft.secure.cohort import SecretCohort
from fedcraft.secure.products import SecretProducts
from fedcraft.secure.server import MaskedRound
from fedcraft.secure.simulation import LocalExchange, secret_cohort
from fedcraft.updates import Layout

SIZES = (60, 30, 6)
CLIENTS = tuple(range(6))
REQUEST = b"request." * 4
Lie = Callable[[str, int, dict[str, Any]], dict[str, Any]]


def updates(seed: int = 0, clients: int = len(CLIENTS)) -> Tensor:
    """Rows that agree in part, of different lengths."""
    random = torch.Generator().manual_seed(seed)
    common = torch.randn(sum(SIZES), generator=random)
    rows = torch.randn(clients, sum(SIZES), generator=random) + 0.5 * common
    return rows * torch.linspace(0.5, 3, clients).unsqueeze(1)


class FaultyExchange(LocalExchange):
    """Loses ``losses[stage]`` from that stage on, and tells clients what ``lie`` returns.

    ``forge[client]`` changes what a client answers; ``received`` keeps every answer.
    """

    def __init__(
        self,
        rows: Tensor,
        options: Secure,
        losses: Mapping[str, set[int]] | None = None,
        lie: Lie | None = None,
    ) -> None:
        clients = list(range(len(rows)))
        random = np.random.default_rng(0)
        super().__init__(rows, clients, options, request=REQUEST, random=random)
        self.losses, self.lie = losses or {}, lie
        self.stages: list[str] = []
        self.received: list[tuple[str, int, Any]] = []
        self.forge: dict[int, Callable[[str, dict[str, Any]], dict[str, Any]]] = {}

    def ask(self, stage: Any, said: Any, private: Any) -> Any:
        self.stages.append(stage)
        self.gone |= self.losses.get(stage, set())
        return super().ask(stage, said, private)

    def answer(self, stage: Any, client: Any, said: Any, mine: Any) -> Any:
        told = dict(said) if self.lie is None else self.lie(stage, client, dict(said))
        reply = super().answer(stage, client, told, mine)
        if client in self.forge:
            reply = self.forge[client](stage, dict(reply))
        self.received.append((stage, client, reply))
        return reply


def secure_round(
    rows: Tensor, options: Secure | None = None, **faults: Any
) -> tuple[MaskedRound, FaultyExchange]:
    """Run a round up to its sketches."""
    chosen = options or Secure(most_share=0.9, refinements=1)
    exchange = FaultyExchange(rows, chosen, **faults)
    clients = list(range(len(rows)))
    round = MaskedRound(exchange, clients, SIZES, chosen, occasion=b"1", request=REQUEST)
    return round, exchange


def secret(round: MaskedRound, options: Secure, clients: int = len(CLIENTS)) -> SecretCohort:
    """Return a round's cohort with weights 1..m."""
    weights = np.arange(1.0, clients + 1)
    layout = Layout.from_sizes(SIZES)
    given = RoundInput(weights, layout, list(range(clients)))
    products = SecretProducts(round, options)
    return secret_cohort(products, round, layout, given, list(range(clients)))


def units(rows: Tensor) -> Tensor:
    parts = torch.split_with_sizes(rows, list(SIZES), dim=1)
    return torch.cat([torch.nn.functional.normalize(part, dim=1) for part in parts], dim=1)
