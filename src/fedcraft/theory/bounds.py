"""The statements of appendix A as functions from constants to the bound.

Numbers of equations and statements are those of the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict, TypeVar, Unpack

import numpy as np

from fedcraft.theory.constants import Constants
from fedcraft.theory.problem import Vector

Number = TypeVar("Number", float, Vector)  # one, or one for every round


@dataclass(frozen=True)
class Bound:
    """A right-hand side, term by term, which shows the dominant term."""

    start: float  # (F(theta_0) - F*) / (c eta_g T)
    step: float  # L eta_g G^2 / (2 c)
    drift: float  # B eta_l (K_max - 1) / c
    residual: float = 0.0  # sum_t R_t / (c T)

    @property
    def total(self) -> float:
        return self.start + self.step + self.drift + self.residual


class Rates(TypedDict):
    """The client rate, the server rate, and the number of rounds T."""

    eta_l: float
    eta_g: float
    rounds: int


def drift_bound(smoothness: float, gradient_bound: float, eta_l: float, steps: Number) -> Number:
    """Lemma A.6, eq. A.6: ||g_i - eta_l K_i grad f_i|| <= (L G_f / 2) eta_l^2 K_i (K_i - 1).

    With L_q for L it bounds the drift of a layer (proof of corollary A.11).
    """
    return smoothness * gradient_bound / 2 * eta_l**2 * steps * (steps - 1)


def weighted_gradient_bound(known: Constants, gradient_norm: Number) -> tuple[Number, Number]:
    """Lemma A.7, eq. A.13: sum_i rho_i^2 ||grad f_i|| >= rho_min ||grad F|| >= c ||grad F||^2.

    Returns both lower bounds, the larger first.
    """
    return known.rho_min * gradient_norm, known.c * gradient_norm**2


def common_descent_bound(known: Constants, gradient_norm: Number, eta_l: float) -> Number:
    """Lemma A.8, eq. A.17: <grad F, g> >= c ||grad F||^2 - B_drift eta_l (K_max - 1)."""
    return known.c * gradient_norm**2 - known.drift * eta_l * (known.max_steps - 1)


def linear_common_descent_bound(known: Constants, gradient_norm: Number, eta_l: float) -> Number:
    """Lemma A.9, eq. A.26: <grad F, g> >= rho_min ||grad F|| - B_drift eta_l (K_max - 1)."""
    return known.rho_min * gradient_norm - known.drift * eta_l * (known.max_steps - 1)


def layerwise_descent_bound(known: Constants, gradient_norm: Number, eta_l: float) -> Number:
    """Eq. A.44: by layer, <grad F, g> >= c ||grad F||^2 - B_layer eta_l (K_max - 1)."""
    return known.c * gradient_norm**2 - known.layer_drift * eta_l * (known.max_steps - 1)


def convergence_bound(known: Constants, initial_value: float, **rates: Unpack[Rates]) -> Bound:
    """Theorem A.4, eq. A.2: bounds the mean of ||grad F(theta_t)||^2 over T rounds by::

    (F(theta_0) - F*) / (c eta_g T) + L eta_g G^2 / (2 c) + (B_drift / c) eta_l (K_max - 1)
    """
    return residual_bound(known, initial_value, mean_residual=0.0, **rates)


def average_norm_bound(known: Constants, initial_value: float, **rates: Unpack[Rates]) -> Bound:
    """Corollary A.10, eq. A.29: theorem A.4 for the mean of ||grad F||, with rho_min for c."""
    limits = known.update_bound, known.drift
    return _bound(known, initial_value, known.rho_min, *limits, 0.0, **rates)


def layerwise_bound(
    known: Constants, initial_value: float, *, mean_residual: float = 0.0, **rates: Unpack[Rates]
) -> Bound:
    """Corollary A.11, eq. A.35: theorem A.4 with G_layer for G and B_layer for B_drift.

    ``mean_residual`` is the mean over rounds of sum_q R_t^q, with L_q in ``residual_term``: the
    paper states residuals for the whole vector only; by layer the same proof adds the same term.
    """
    limits = known.layer_update_bound, known.layer_drift
    return _bound(known, initial_value, known.c, *limits, mean_residual, **rates)


def residual_bound(
    known: Constants, initial_value: float, *, mean_residual: float, **rates: Unpack[Rates]
) -> Bound:
    """Corollary A.12, eq. A.50: theorem A.4 plus (1 / (c T)) sum_t R_t.

    ``mean_residual`` is (1 / T) sum_t R_t, with R_t from ``residual_term``.
    """
    limits = known.update_bound, known.drift
    return _bound(known, initial_value, known.c, *limits, mean_residual, **rates)


def residual_term(
    known: Constants, deviations: Vector, eta_l: float, smoothness: float | None = None
) -> float:
    """Eq. A.49: R_t = (G_f + (L G_f / 2) eta_l (K_max - 1)) sum_i rho_i |delta_i|.

    ``deviations`` (N,) is delta_t = U g_t - rho.
    """
    curve = known.smoothness if smoothness is None else smoothness
    reach = known.gradient_bound * (1 + curve / 2 * eta_l * (known.max_steps - 1))
    return reach * float(known.weights @ np.abs(deviations))


def update_norm_bound(targets: Vector, smallest_singular_value: float) -> float:
    """The premise of assumption A.3: ||g_t||^2 <= 1 + ||rho||^2 / sigma_min(U_t)^2.

    Not in the paper. g_t is the part of the unit reference in the null space of U_t plus U_t^+ rho,
    and these two are orthogonal. So G is bounded if and only if sigma_min(U_t) stays away from 0.
    """
    if smallest_singular_value <= 0:
        return math.inf
    return math.hypot(1.0, float(np.linalg.norm(targets)) / smallest_singular_value)


def stationarity_floor(known: Constants, client_gradient_norms: Vector, eta_l: float) -> float:
    """The cost of a bounded G: ||grad F|| >= (sum_i rho_i^2 ||grad f_i|| - drift) / G.

    Not in the paper: Cauchy-Schwarz on the step before the last in the proof of lemma A.8, with
    drift = B_drift eta_l (K_max - 1). Where the clients' gradients do not vanish, ||grad F|| cannot
    become small unless G becomes large.
    """
    aligned = float((known.weights * known.targets) @ client_gradient_norms)
    drift = known.drift * eta_l * (known.max_steps - 1)
    return max(aligned - drift, 0.0) / known.update_bound


def _bound(
    known: Constants,
    initial_value: float,
    slope: float,
    update_bound: float,
    drift: float,
    mean_residual: float,
    *,
    eta_l: float,
    eta_g: float,
    rounds: int,
) -> Bound:
    return Bound(
        start=(initial_value - known.lower_bound) / (slope * eta_g * rounds),
        step=known.smoothness * eta_g * update_bound**2 / (2 * slope),
        drift=drift * eta_l * (known.max_steps - 1) / slope,
        residual=mean_residual / slope,
    )
