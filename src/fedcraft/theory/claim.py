"""An inequality at many places of a run, and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Statement:
    """left <= right at every place (round, client or layer) of one run.

    ``left`` and ``right`` belong to the place where the bound is tightest; ``ratio`` is left /
    right there, ``typical`` its median over places. ``informative`` is the share of places where
    the bound says more than the assumptions alone: a mean of ||grad F||^2 below G_f^2, a
    positive lower bound on the descent; None where that has no meaning. ``nontrivial`` counts the
    places where left is not 0 (nor rounding, which counts as 0) and right is not infinite.
    """

    name: str
    where: str
    left: float
    right: float
    ratio: float
    typical: float
    informative: float | None
    places: int
    nontrivial: int
    broken: int

    @property
    def holds(self) -> bool:
        """True if no place breaks the inequality by more than rounding."""
        return self.broken == 0


@dataclass(frozen=True)
class Claim:
    """left <= right, elementwise; ``scale`` is the size of the numbers that were subtracted."""

    name: str
    where: str
    left: npt.ArrayLike
    right: npt.ArrayLike
    scale: npt.ArrayLike = 0.0
    informative: npt.ArrayLike | None = None

    def judge(self, tolerance: float) -> Statement:
        """Count the places where left > right by more than ``tolerance`` times their size."""
        given = (self.left, self.right, self.scale)
        left, right, scale = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in given))
        sizes = np.abs([left, right, scale])
        size = np.where(np.isfinite(sizes), sizes, 0.0).max(axis=0)
        # "not <=" so that a NaN on either side counts as broken.
        broken = ~(left <= right + tolerance * size)
        rounding = (np.abs(left) <= tolerance * np.abs(scale)) & ~broken
        ratio = np.where(broken, np.inf, 0.0)
        np.divide(left, right, out=ratio, where=(right > 0) & ~rounding)
        tightest = np.unravel_index(np.argmax(ratio), ratio.shape)
        share = None
        if self.informative is not None:
            share = float(np.mean(np.broadcast_to(self.informative, ratio.shape)))
        return Statement(
            name=self.name,
            where=self.where,
            left=float(left[tightest]),
            right=float(right[tightest]),
            ratio=float(ratio[tightest]),
            typical=float(np.median(ratio)),
            informative=share,
            places=ratio.size,
            nontrivial=int(((left != 0) & (right != np.inf) & ~rounding).sum()),
            broken=int(broken.sum()),
        )
