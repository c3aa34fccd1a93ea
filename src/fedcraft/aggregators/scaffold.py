"""SCAFFOLD's server: the mean of the updates, and the mean control variate that clients receive."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor

from fedcraft.aggregators.average import Average
from fedcraft.aggregators.base import Outcome
from fedcraft.aggregators.cohort import Cohort, Vector
from fedcraft.errors import require
from fedcraft.linalg import ratio

_CONTROL = "control"


class ScaffoldServer(Average):
    """g_t = mean_i g_i, and c <- c + (1/N) sum_i (c_i^+ - c_i)

    (Karimireddy et al. 2020, arXiv:1910.06378, algorithm 1, option II). Since
    c_i^+ - c_i = g_i / (K_i eta_l) - c, the uploads g_i and the numbers of local steps K_i are all
    that the server needs: clients do not upload their control variates. They receive c with the
    model. Works with the local objective ``scaffold``. Remembers one vector; cost O(m d).

    * ``weighting``: of the mean; ``"uniform"`` as in the paper, or ``"data"``.
    * ``clients``: N; if left out, the number of the run's clients (on Flower, of the nodes online),
      or else those of the round.

    A client that took no step (K_i = 0) leaves c as it is.
    """

    needs = frozenset({"steps", "client_lr"})
    sends = frozenset({_CONTROL})

    def __init__(
        self,
        *,
        weighting: Literal["data", "uniform"] = "uniform",
        clients: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(weighting=weighting, **options)
        require(clients is None or clients > 0, "clients", "a positive number or None", clients)
        self.clients = clients

    @property
    def sent(self) -> dict[str, Tensor]:
        """The control variate c; nothing before the first round, where it is zero."""
        found = self.memory.get(_CONTROL)
        return {} if found is None else {_CONTROL: found}

    def direction(self, cohort: Cohort) -> Outcome:
        outcome = super().direction(cohort)
        self.memory = {**self.memory, _CONTROL: self._control(cohort)}
        return outcome

    def _control(self, cohort: Cohort) -> Vector:
        """(1 - m/N) c + (1/N) sum_i g_i / (K_i eta_l), over the clients that took a step."""
        total = self.population(self.clients) or cohort.size
        paths = cast(Tensor, cohort.steps) * cast(float, cohort.client_lr)
        kept = 1 - float((paths > 0).sum()) / total
        scale = torch.full((len(cohort.layout),), kept, dtype=torch.float64)
        return cohort.combine(ratio(1, paths) / total, self.memory.get(_CONTROL), scale)
