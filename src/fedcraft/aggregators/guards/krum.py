"""Krum and Multi-Krum: the clients whose nearest neighbours are nearest."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.guards.base import (
    CAP,
    Guard,
    Judgement,
    Scale,
    check_scale,
    kernel,
    slack,
    square_distances,
)
from fedcraft.errors import require


class MultiKrum(Guard):
    """Keep the m - f clients with the smallest scores (Blanchard et al., NeurIPS 2017)::

        s(i) = sum of ||x_i - x_j||^2 over the max(m - f - 2, 1) nearest other clients j

    * ``hostile``: f, as a number of clients, or below 1 as a share of the cohort (rounded up).
    * ``keep``: how many clients to keep; m - f if left out.
    * ``scale``: what x is, see :func:`fedcraft.aggregators.guards.base.kernel`. ``"raw"`` as in
      the paper.

    Clients whose score ties with the last one kept stay too, so equal updates are all kept. Cost
    O(m^2 log m) beyond the Gram matrix.
    """

    def __init__(
        self, *, hostile: float = 0.2, keep: int | None = None, scale: Scale = "raw", **options: Any
    ) -> None:
        super().__init__(**options)
        require(hostile >= 0, "hostile", "a number of clients, or a share below 1", hostile)
        require(keep is None or keep >= 1, "keep", "a number of at least 1, or None", keep)
        self.hostile, self.keep, self.scale = hostile, keep, check_scale(scale)

    def judge(self, cohort: Cohort) -> Judgement:
        f = presumed(self.hostile, cohort.size)
        products = kernel(cohort, self.scale)
        scores = krum_scores(products, f)
        keep = min(self.keep or max(cohort.size - f, 1), cohort.size)
        limit = float(scores.sort().values[keep - 1])
        most = limit + cohort.size * slack(cohort, products)
        reasons = (
            f"distance score {score:.3g}, above {limit:.3g}" if score > most else ""
            for score in scores.tolist()
        )
        return Judgement(tuple(reasons))


class Krum(MultiKrum):
    """Keep the one client with the smallest score of Multi-Krum (Blanchard et al. 2017)."""

    def __init__(
        self, *, hostile: float = 0.2, scale: Scale = "raw", cap: float | None = CAP
    ) -> None:
        super().__init__(hostile=hostile, keep=1, scale=scale, cap=cap)


def presumed(hostile: float, count: int) -> int:
    """Return f for a cohort of ``count`` clients: a number, or a share below 1, rounded up."""
    return int(hostile) if hostile >= 1 else math.ceil(hostile * count - 1e-9)


def krum_scores(products: Tensor, f: int) -> Tensor:
    """s(i) of every client, (m,)."""
    count = len(products)
    nearest = min(max(count - f - 2, 1), count - 1)
    ordered = square_distances(products).sort(dim=1).values
    scores: Tensor = ordered[:, 1 : nearest + 1].sum(dim=1)
    return scores
