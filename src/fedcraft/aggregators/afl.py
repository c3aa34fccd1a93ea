"""AFL: play the clients' losses against the model (agnostic federated learning)."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.client_memory import known_clients
from fedcraft.aggregators.cohort import Cohort
from fedcraft.errors import InputError, require
from fedcraft.linalg import project_simplex, shares
from fedcraft.updates import ClientId


class AFL(Aggregator):
    """g_t = sum_i lambda_i g_i / sum_{S_t} lambda_j, then lambda <- P(lambda + gamma F).

    P is the projection on the simplex and F_i the loss at theta_t: lambda climbs the losses of
    min_theta max_lambda sum_i lambda_i f_i (Mohri et al. 2019), starting uniform. The direction
    uses the lambda from before this round's losses. Remembers lambda; cost O(m d + N log N).

    The paper has all clients in every round. With sampling, only the sampled entries of lambda
    climb, all N are projected, and the direction renormalises over the participants (uniform if
    their lambda are all zero).

    * ``gamma``: 0.1 as in one released program; most released code has 0.01. With N = 1000 and 0.1
      lambda concentrates on the clients sampled last, which climb by gamma F from about 1/N;
      on FEMNIST the model was better with 0.1 all the same.
    * ``clients``: N, if known ahead: the ids are then 0 ... N-1. Otherwise lambda grows: a client
      seen for the first time enters with the uniform value 1/N of the clients seen so far, and the
      others make room in proportion.
    * ``indexing="position"`` gives lambda_i to the i-th row of a round, whichever client it is,
      as one released program does under sampling; the default keeps it with the client.
    * ``evaluate_average``: the method's output is the average of the iterates, see
      ``engine.model_average``. The rule never sees theta: the round loop keeps the average.
    """

    needs = frozenset({"losses"})

    def __init__(
        self,
        *,
        gamma: float = 0.1,
        clients: int | None = None,
        indexing: Literal["client", "position"] = "client",
        evaluate_average: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require(gamma >= 0, "gamma", "a number >= 0", gamma)
        require(clients is None or clients > 0, "clients", "a positive number or None", clients)
        require(indexing in ("client", "position"), "indexing", "'client' or 'position'", indexing)
        self.gamma = gamma
        self.clients = clients
        self.indexing = indexing
        self.evaluate_average = evaluate_average

    @property
    def mixture(self) -> dict[ClientId, float]:
        """lambda by client (by position with that indexing)."""
        weights = self.memory.get("lambda", torch.empty(0))
        return dict(zip(self.memory.get("clients", []), weights.tolist(), strict=True))

    def direction(self, cohort: Cohort) -> Outcome:
        names = range(cohort.size) if self.indexing == "position" else cohort.client_ids
        memory = {"clients": list(range(self.clients or 0)), **self.memory}
        known, rows = known_clients(memory, names)
        weights = self._grown(known, len(memory["clients"]))
        climbed = weights.index_add(0, rows, self.gamma * cast(Tensor, cohort.losses))
        self.memory = {"clients": known, "lambda": project_simplex(climbed)}
        return Outcome(cohort.combine(shares(weights[rows])))

    def _grown(self, known: list[ClientId], before: int) -> Tensor:
        """Return lambda of all known clients, the first ``before`` of which are not new."""
        total = len(known)
        if total > before and self.clients is not None:
            raise InputError(
                f"client_ids: expected integers below clients={self.clients}, found "
                f"{known[before]!r}"
            )
        uniform = torch.full((total,), 1 / total, dtype=torch.float64)
        old = self.memory.get("lambda")
        return uniform if old is None else torch.cat([old * (before / total), uniform[before:]])
