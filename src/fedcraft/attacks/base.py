"""The contract of every attack: what hostile clients do in a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcraft.data import Federation, Tensors
from fedcraft.errors import require
from fedcraft.seeds import generator, torch_generator

Floats = NDArray[np.float64]


class Attack:
    """What hostile clients do; the base class itself does nothing but claim.

    A subclass overrides ``poisoned`` (what hostile clients train on) or ``updates`` (what they send
    instead of the update that they have trained). Hostile clients know each other, and what the
    honest clients of the round have sent: the worst case that the literature assumes.

    * ``share``: the share of all clients that is hostile, at least one; which ones is drawn once
      per run, from the run's seed.
    * ``samples``: the number of training samples that a hostile client claims; None for the truth.
    * ``loss``: the training loss that it claims; None for the truth.
    """

    def __init__(
        self, *, share: float = 0.1, samples: float | None = None, loss: float | None = None
    ) -> None:
        require(0 < share < 1, "share", "a share of the clients in (0, 1)", share)
        require(samples is None or samples >= 0, "samples", "a number >= 0, or None", samples)
        self.share, self.samples, self.loss = share, samples, loss

    def hostile(self, clients: int, seed: int) -> NDArray[np.int64]:
        """Draw the hostile clients of a run, in the order of their ids."""
        count = min(max(round(self.share * clients), 1), clients)
        drawn = generator(seed, "hostile clients").choice(clients, count, replace=False)
        return np.sort(drawn).astype(np.int64)

    def poisoned(self, tensors: Tensors, rows: NDArray[np.int64], classes: int) -> Tensors:
        """Return the data with other training samples ``rows``, those of the hostile clients."""
        return tensors

    def updates(self, own: Tensor, honest: Tensor, draw: torch.Generator) -> Tensor:
        """Return what the hostile clients send, (h, d), for what they have trained, ``own``.

        ``honest`` (k, d) are the updates of the round's other clients; where there are none, what
        the hostile clients have trained.
        """
        return own


@dataclass(frozen=True, eq=False)
class Attackers:
    """The hostile clients of one run."""

    attack: Attack
    clients: NDArray[np.int64]
    seed: int

    @classmethod
    def of(cls, attack: Attack, clients: int, seed: int) -> Attackers:
        """Draw them."""
        return cls(attack, attack.hostile(clients, seed), seed)

    def poisoned(self, tensors: Tensors, federation: Federation) -> Tensors:
        """Return the data of the run, of which the hostile clients' training part is theirs."""
        rows = np.concatenate([federation.rows(client) for client in self.clients.tolist()])
        return self.attack.poisoned(tensors, rows, federation.dataset.classes)

    def forge(self, clients: NDArray[np.int64], updates: Tensor, round_index: int) -> list[int]:
        """Put what hostile clients send into their rows of the round's updates; return the rows."""
        marked = torch.from_numpy(np.isin(clients, self.clients))
        if not bool(marked.any()):
            return []
        own = updates[marked]
        honest = updates[~marked] if not bool(marked.all()) else own
        draw = torch_generator(self.seed, "attack", round_index)
        updates[marked] = self.attack.updates(own, honest, draw).to(updates)
        rows: list[int] = torch.nonzero(marked).flatten().tolist()
        return rows


def left_out_shares(
    rounds: Iterable[Mapping[str, Any]], attackers: Attackers | None
) -> dict[str, float | None]:
    """Return which share of the honest and of the hostile updates a guard has left out."""
    hostile = set() if attackers is None else set(attackers.clients.tolist())
    sent, left_out = {True: 0, False: 0}, {True: 0, False: 0}
    for row in rounds:
        absent = set(row.get("left_out", ()))
        for client in row["clients"]:
            sent[client in hostile] += 1
            left_out[client in hostile] += client in absent
    kinds = {"honest": False, "hostile": True}
    return {name: left_out[k] / sent[k] if sent[k] else None for name, k in kinds.items()}
