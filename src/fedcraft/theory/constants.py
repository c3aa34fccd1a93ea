"""The constants of appendix A for one problem and one training configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcraft.errors import InputError
from fedcraft.theory.problem import SmoothProblem, Vector
from fedcraft.updates import Layout


@dataclass(frozen=True)
class Constants:
    """All constants in the right-hand sides of appendix A.

    ``targets`` are the alignments p_i that the step reaches; in the paper p_i = rho_i. The proofs
    carry over to other targets with rho_min -> min_i p_i and sum_i rho_i^2 -> sum_i rho_i p_i.
    """

    weights: Vector  # rho (N,)
    targets: Vector  # p (N,)
    smoothness: float  # L
    gradient_bound: float  # G_f
    lower_bound: float  # F*
    max_steps: int  # K_max
    update_bound: float  # G
    block_smoothness: tuple[float, ...]  # L_q
    block_update_bounds: tuple[float, ...]  # G^q

    @property
    def rho_min(self) -> float:
        """min_i p_i (eq. A.1)."""
        return float(self.targets.min())

    @property
    def c(self) -> float:
        """c = rho_min / G_f (eq. A.1)."""
        return self.rho_min / self.gradient_bound

    @property
    def overlap(self) -> float:
        """sum_i rho_i p_i; the paper's sum_i rho_i^2."""
        return float(self.weights @ self.targets)

    @property
    def drift(self) -> float:
        """B_drift = (L G_f / 2) (G + sum_i rho_i^2) (eq. A.1)."""
        return self.smoothness * self.gradient_bound / 2 * (self.update_bound + self.overlap)

    @property
    def block_drifts(self) -> tuple[float, ...]:
        """B_q = (L_q G_f / 2) (G^q + sum_i rho_i^2) (eq. A.34)."""
        pairs = zip(self.block_smoothness, self.block_update_bounds, strict=True)
        return tuple(
            smoothness * self.gradient_bound / 2 * (bound + self.overlap)
            for smoothness, bound in pairs
        )

    @property
    def layer_drift(self) -> float:
        """B_layer = sum_q B_q (eq. A.34)."""
        return sum(self.block_drifts)

    @property
    def layer_update_bound(self) -> float:
        """G_layer = (sum_q (G^q)^2)^(1/2) (eq. A.34)."""
        return float(np.linalg.norm(self.block_update_bounds))


def constants(
    problem: SmoothProblem,
    *,
    steps: int | Sequence[int],
    update_bound: float,
    layout: Layout | None = None,
    block_update_bounds: Sequence[float] | None = None,
    targets: Vector | None = None,
) -> Constants:
    """Collect the constants of a problem trained with K_i = ``steps``.

    ``update_bound`` is G: no formula gives it beforehand (see ``bounds.update_norm_bound``), so it
    comes from clipping or from the run. ``block_update_bounds`` are the G^q of ``layout``, each G
    if left out; ``targets`` the p_i, rho if left out.
    """
    layout = layout or Layout.whole(problem.dimension)
    limits = [update_bound] * len(layout) if block_update_bounds is None else block_update_bounds
    if len(limits) != len(layout):
        raise InputError(
            f"block_update_bounds: expected one for each of {len(layout)} layers, "
            f"found {len(limits)}"
        )
    chosen = problem.weights if targets is None else targets
    if chosen.shape != problem.weights.shape or not bool((chosen > 0).all()):
        raise InputError(f"targets: expected {len(problem.weights)} positive numbers")
    return Constants(
        weights=problem.weights,
        targets=chosen,
        smoothness=problem.smoothness,
        gradient_bound=problem.gradient_bound,
        lower_bound=problem.lower_bound,
        max_steps=int(np.max(steps)),
        update_bound=update_bound,
        block_smoothness=tuple(problem.block_smoothness(block) for block in layout.slices),
        block_update_bounds=tuple(float(limit) for limit in limits),
    )
