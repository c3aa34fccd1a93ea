"""The cap on claimed sizes alone, and no guard at all."""

from __future__ import annotations

from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.guards.base import Guard, Judgement


class SizeCap(Guard):
    """Only cap what clients claim about themselves; see ``cap`` of every guard."""

    def judge(self, cohort: Cohort) -> Judgement:
        return Judgement()


class NoGuard(SizeCap):
    """Trust every client and everything it claims: the paper's setting."""

    def __init__(self) -> None:
        super().__init__(cap=None)
