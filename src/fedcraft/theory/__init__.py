"""The paper's theory (appendix A), checked numerically.

``check`` runs CRAFT on a ``SmoothProblem`` and compares both sides of every statement;
``bounds`` holds the right-hand sides as plain functions of ``constants``.
"""

from __future__ import annotations

from fedcraft.theory.bounds import (
    Bound,
    average_norm_bound,
    common_descent_bound,
    convergence_bound,
    drift_bound,
    layerwise_bound,
    layerwise_descent_bound,
    linear_common_descent_bound,
    residual_bound,
    residual_term,
    stationarity_floor,
    update_norm_bound,
    weighted_gradient_bound,
)
from fedcraft.theory.check import Report, check
from fedcraft.theory.claim import Claim, Statement
from fedcraft.theory.constants import Constants, constants
from fedcraft.theory.logistic import LogisticProblem, random_logistic
from fedcraft.theory.problem import SmoothProblem

__all__ = [
    "Bound",
    "Claim",
    "Constants",
    "LogisticProblem",
    "Report",
    "SmoothProblem",
    "Statement",
    "average_norm_bound",
    "check",
    "common_descent_bound",
    "constants",
    "convergence_bound",
    "drift_bound",
    "layerwise_bound",
    "layerwise_descent_bound",
    "linear_common_descent_bound",
    "random_logistic",
    "residual_bound",
    "residual_term",
    "stationarity_floor",
    "update_norm_bound",
    "weighted_gradient_bound",
]
