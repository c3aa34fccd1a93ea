"""Protection against copies: clients that send nearly the same update count as one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.guards.base import Guard, Judgement, Scale, check_scale, kernel
from fedcraft.errors import require


class Copies(Guard):
    """Divide the weight of a client by the number of clients that send nearly its direction.

    The idea is FoolsGold's (Fung, Yoon and Beschastnikh, RAID 2020): honest clients differ, the
    copies of one attacker do not. Client i and j are copies if their cosine is at least
    ``similarity`` (``scale`` says which cosine); FoolsGold compares with the whole past of every
    client, which costs a vector per client. Honest clients with equal data lose nothing as long as
    *all* are alike: weights are renormalised. Leaves nobody out.
    """

    def __init__(
        self, *, similarity: float = 0.95, scale: Scale = "layers", **options: Any
    ) -> None:
        super().__init__(**options)
        require(0 < similarity <= 1, "similarity", "a cosine in (0, 1]", similarity)
        require(scale != "raw", "scale", "'unit' or 'layers'", scale)
        self.similarity, self.scale = similarity, check_scale(scale)

    def judge(self, cohort: Cohort) -> Judgement:
        counts = copy_counts(kernel(cohort, self.scale), self.similarity)
        if bool((counts == counts[0]).all()):
            return Judgement.keeping_all(cohort)
        return Judgement.keeping_all(cohort, factors=1 / counts)


def same_direction(cosines: Tensor, similarity: float) -> Tensor:
    """Mark, for every client, itself and those that nearly copy it, (m, m) float64."""
    return (cosines >= similarity).to(cosines.dtype).fill_diagonal_(1)


def copy_counts(cosines: Tensor, similarity: float) -> Tensor:
    """Return how many clients, with itself, each client nearly copies, (m,) float64."""
    return same_direction(cosines, similarity).sum(dim=1)
