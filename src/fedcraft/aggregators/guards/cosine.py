"""The agreement filter: clients that point away from the others are left out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.guards.agreement import others_cosines
from fedcraft.aggregators.guards.base import Guard, Judgement, Scale, check_scale, kernel, slack
from fedcraft.aggregators.guards.copies import copy_counts
from fedcraft.errors import require


class Cosine(Guard):
    """Leave out, one by one, the client that agrees least with the mean of the others::

        a_i = <u_i, m_i> / ||m_i||,     m_i = sum_{j != i} v_j u_j / sum_{j != i} v_j

    while the smallest a_i is below ``least``; after each one the others are measured again, because
    a liar spoils the mean for the honest. u are unit updates, ``scale`` says of what; all v_j are
    equal, except that clients whose cosine reaches ``similarity`` share one vote, so that copies
    cannot outvote the others. At most the share ``most`` of the cohort is left out, because a
    majority of liars cannot be told from a minority. Cost O(m^3) on the Gram matrix.
    """

    def __init__(
        self,
        *,
        least: float = 0.0,
        most: float = 0.5,
        similarity: float = 0.95,
        scale: Scale = "layers",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        require(-1 <= least <= 1, "least", "a cosine", least)
        require(0 < most < 1, "most", "a share of the cohort in (0, 1)", most)
        require(0 < similarity <= 1, "similarity", "a cosine in (0, 1]", similarity)
        require(scale != "raw", "scale", "'unit' or 'layers'", scale)
        self.least, self.most, self.similarity = least, most, similarity
        self.scale = check_scale(scale)

    def judge(self, cohort: Cohort) -> Judgement:
        cosines = kernel(cohort, self.scale)
        votes = 1 / copy_counts(cosines, self.similarity)
        return Judgement(self.reasons(cohort, cosines, votes), factors=votes)

    def reasons(self, cohort: Cohort, cosines: Tensor, votes: Tensor) -> tuple[str, ...]:
        """Return why each client is left out, "" for those that stay."""
        kept = torch.ones(cohort.size, dtype=torch.bool)
        reasons = [""] * cohort.size
        limit = self.least - slack(cohort, cosines)
        for _ in range(int(self.most * cohort.size)):
            agreement = others_cosines(cosines, votes * kept).masked_fill(~kept, torch.inf)
            worst = int(agreement.argmin())
            if not float(agreement[worst]) < limit:
                break
            reasons[worst] = f"cosine {float(agreement[worst]):+.2f} with the others"
            kept[worst] = False
        return tuple(reasons)
