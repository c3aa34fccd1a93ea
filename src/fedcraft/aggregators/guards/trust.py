"""Trust over rounds: a client's record counts, and it can recover."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.client_memory import grown, known_clients
from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.guards.agreement import others_cosines
from fedcraft.aggregators.guards.base import Judgement
from fedcraft.aggregators.guards.copies import Directions
from fedcraft.errors import require
from fedcraft.updates import ClientId


class Trust(Directions):
    """Remember how far every client agreed with the others, and leave out those that did not.

    A client's record is the moving average r_i <- d r_i + (1 - d) a_i of its agreement a_i, its
    cosine with the mean of the others, d = ``decay``; rounds that it misses do not change it, and
    the average is corrected for its start at zero. The others count by their records,
    v_j = max(r_j, 0), a new client like the median of the known ones; copies share one vote as in
    the guard ``cosine``. Left out is a client whose record, with this round, is below ``least``. It
    is measured in every round all the same, so it comes back once it agrees.

    Remembers two numbers per client seen. Cost O(m^2) on the Gram matrix.
    """

    def __init__(self, *, decay: float = 0.5, least: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        require(0 <= decay < 1, "decay", "a number in [0, 1)", decay)
        require(-1 <= least <= 1, "least", "a cosine", least)
        self.decay, self.least = decay, least

    def judge(self, cohort: Cohort) -> Judgement:
        cosines = self.cosines(cohort)
        votes = 1 / self.copies(cosines).sum(dim=1)
        before = self._records(cohort)
        agreement = others_cosines(cosines, votes * before.clamp(min=0))
        after, least = self._update(cohort, agreement), self.least
        pairs = zip(after.tolist(), agreement.tolist(), strict=True)
        reasons = (
            f"record {record:+.2f}, cosine {now:+.2f} with the others" if record < least else ""
            for record, now in pairs
        )
        return Judgement(tuple(reasons), factors=votes)

    def _recall(self, cohort: Cohort) -> tuple[list[ClientId], Tensor, Tensor, Tensor]:
        """Return all clients seen, this round's places among them, sums and numbers of rounds."""
        known, places = known_clients(self.memory, cohort.client_ids)
        moving, counts = (grown(self.memory.get(key), len(known)) for key in ("moving", "counts"))
        return known, places, moving, counts

    def _records(self, cohort: Cohort) -> Tensor:
        """Return the records before this round, (m,); all ones if there are none."""
        _, places, moving, counts = self._recall(cohort)
        seen = counts > 0
        records = torch.where(seen, moving / (1 - self.decay**counts).clamp(min=1e-12), 0)
        good = records[seen & (records > 0)]
        fresh = float(good.median()) if len(good) else 1.0
        found: Tensor = torch.where(seen, records, fresh)[places]
        return found if bool((found > 0).any()) else torch.ones_like(found)

    def _update(self, cohort: Cohort, agreement: Tensor) -> Tensor:
        """Add this round to the records; return them."""
        known, places, moving, counts = self._recall(cohort)
        moving[places] = self.decay * moving[places] + (1 - self.decay) * agreement
        counts[places] += 1
        self.memory = {"clients": known, "moving": moving, "counts": counts}
        found: Tensor = moving[places] / (1 - self.decay ** counts[places])
        return found
