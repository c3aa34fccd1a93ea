"""FedDyn's server: the mean of the updates, corrected by the sum of all earlier ones."""

from __future__ import annotations

from typing import Any

import torch

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.cohort import Cohort
from fedcraft.errors import require

_DRIFT = "drift"


class FedDynServer(Aggregator):
    """s <- s + (1/N) sum_i g_i,   g_t = (1/m) sum_i g_i + s

    (Acar et al. 2021, arXiv:2111.04263, algorithm 1, with h = -alpha s: alpha cancels on the
    server). With server_lr = 1, theta_{t+1} is the mean of the clients' models minus s. Works with
    the local objective ``feddyn``. Remembers one vector; cost O(m d).

    * ``clients``: N; if left out, the number of the run's clients (on Flower, of the nodes online),
      or else those of the round.
    """

    def __init__(self, *, clients: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        require(clients is None or clients > 0, "clients", "a positive number or None", clients)
        self.clients = clients

    def direction(self, cohort: Cohort) -> Outcome:
        total = self.population(self.clients) or cohort.size
        ones = torch.ones_like(cohort.weights)
        drift = cohort.combine(ones / total, self.memory.get(_DRIFT))
        self.memory = {**self.memory, _DRIFT: drift}
        return Outcome(cohort.combine(ones / cohort.size, drift))
