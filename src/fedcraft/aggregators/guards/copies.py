"""Protection against copies: clients that send nearly the same update count as one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.guards.base import Guard, Judgement, Scale, kernel
from fedcraft.errors import require


class Directions(Guard):
    """The base of guards that compare directions and find out who copies whom.

    Client i and j are copies if their cosine is at least ``similarity``; ``scale`` says which
    cosine.
    """

    def __init__(
        self, *, similarity: float = 0.95, scale: Scale = "layers", **options: Any
    ) -> None:
        super().__init__(**options)
        require(0 < similarity <= 1, "similarity", "a cosine in (0, 1]", similarity)
        require(scale in ("unit", "layers"), "scale", "'unit' or 'layers'", scale)
        self.similarity, self.scale = similarity, scale

    def cosines(self, cohort: Cohort) -> Tensor:
        """The cosines between the clients, (m, m)."""
        return kernel(cohort, self.scale)

    def copies(self, cosines: Tensor) -> Tensor:
        """Mark, for every client, itself and those that nearly copy it, (m, m) float64."""
        return (cosines >= self.similarity).to(cosines.dtype).fill_diagonal_(1)


class Copies(Directions):
    """Divide the weight of a client by the number of clients that send nearly its direction.

    The idea is FoolsGold's (Fung, Yoon and Beschastnikh, RAID 2020): honest clients differ, the
    copies of one attacker do not. FoolsGold compares with the whole past of every client, which
    costs a vector per client. Honest clients with equal data lose nothing as long as *all* are
    alike: weights are renormalised. Leaves nobody out.
    """

    def judge(self, cohort: Cohort) -> Judgement:
        counts = self.copies(self.cosines(cohort)).sum(dim=1)
        alike = bool((counts == counts[0]).all())
        return Judgement(factors=None if alike else 1 / counts)
