"""The statements of appendix A for a run, always in the form left <= right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedcraft.theory import bounds
from fedcraft.theory.bounds import Bound
from fedcraft.theory.claim import Claim
from fedcraft.theory.measured import Measured
from fedcraft.theory.problem import Vector
from fedcraft.theory.trajectory import block_norms

FEASIBLE = 1e-9  # a shortfall of U g below rho that is rounding in float64
FULL_RANK = 1e-3  # sigma_min(U) above which both constraints are met to rounding in float64


def claims(it: Measured) -> Iterator[Claim]:
    """Yield every statement that applies to the run.

    Lemmas A.8 and A.9, theorem A.4 and corollary A.10 assume U g = rho, but their proofs only
    use U g >= rho; they are checked wherever that holds. It holds by layer too, where
    <g_i, g> = rho_i sum_q ||g_i^q|| >= rho_i ||g_i||.
    """
    yield from _assumptions(it)
    yield from _drift(it)
    yield from _weighted_gradient(it)
    yield _update_norm(it)
    yield from _alignment(it)
    if it.deviations.min() >= -FEASIBLE:
        yield from _exact(it)
    if len(it.layout) == 1:
        yield from _residual(it)
    else:
        yield from _by_layer(it)


def _assumptions(it: Measured) -> Iterator[Claim]:
    known, run = it.constants, it.run
    changes = np.linalg.norm(it.gradient_changes, axis=-1)
    quotients = np.stack([run.curviest, changes / it.distances[:, None]])
    scale = _quotient_scale(it)
    yield Claim("smoothness", "Assumption A.1", quotients, known.smoothness, scale)
    yield Claim("lower_bound", "Assumption A.2", known.lower_bound, run.values)
    yield Claim("gradient_bound", "Assumption A.3", run.steepest, known.gradient_bound)
    yield _one_step_descent(it)


def _quotient_scale(it: Measured) -> Vector:
    """(2, T, N): the gradients whose difference makes a quotient of A.1, over the distance.

    Within a round that is at least eta_l ||grad f_i||, between rounds ||theta_{t+1} - theta_t||. A
    small rate brings the points so close that the quotient is mostly rounding.
    """
    local = it.eta_l * it.client_gradient_norms
    between = np.broadcast_to(it.distances[:, None], local.shape)
    distances = np.stack([np.where(local > 0, local, np.inf), between])
    return np.asarray(it.run.steepest / distances)


def _one_step_descent(it: Measured) -> Claim:
    """Eq. A.23: F(theta_{t+1}) <= F(theta_t) - eta_g <grad F, g> + (L eta_g^2 / 2) ||g||^2.

    Written with the last term alone on the right, so that the ratio tells how much of L is used.
    """
    values, slope = it.run.values, it.eta_g * it.descents.sum(-1)
    bent = np.diff(values) + slope
    limit = it.constants.smoothness / 2 * (it.eta_g * it.update_norms) ** 2
    scale = np.abs([values[:-1], values[1:], slope]).max(axis=0)
    return Claim("one_step_descent", "eq. A.23", bent, limit, scale)


def _drift(it: Measured) -> Iterator[Claim]:
    limits = _drift_limits(it, it.constants.smoothness)
    sizes = np.linalg.norm(it.run.updates, axis=-1)
    errors = np.linalg.norm(it.drifts, axis=-1)
    yield Claim("drift", "Lemma A.6", errors, limits, sizes, limits < _trivial_drift(it))


def _trivial_drift(it: Measured) -> Vector:
    """(N,): K_i - 1 differences of two gradients, each at most 2 G_f long."""
    return 2 * it.eta_l * it.constants.gradient_bound * (np.asarray(it.steps) - 1)


def _drift_limits(it: Measured, smoothness: float) -> Vector:
    steps = np.asarray(it.steps, dtype=np.float64)
    return bounds.drift_bound(smoothness, it.constants.gradient_bound, it.eta_l, steps)


def _weighted_gradient(it: Measured) -> Iterator[Claim]:
    known = it.constants
    right = it.client_gradient_norms @ (known.weights * known.targets)
    linear, squared = bounds.weighted_gradient_bound(known, it.gradient_norms)
    yield Claim("weighted_gradient", "Lemma A.7", linear, right)
    yield Claim("weighted_gradient_squared", "Lemma A.7", squared, right)


def _update_norm(it: Measured) -> Claim:
    # With eps > 0 the step reaches a little more than p, and is longer.
    reached = it.targets + np.maximum(it.block_deviations, 0)
    values = it.smallest_singular_values
    right = np.array(
        [
            [bounds.update_norm_bound(row, float(value)) for row, value in zip(*pair, strict=True)]
            for pair in zip(reached, values, strict=True)
        ]
    )
    return Claim("update_norm", "extension", it.block_update_norms, right, 0.0, np.isfinite(right))


def _alignment(it: Measured) -> Iterator[Claim]:
    """Eq. 4.3, p <= U^q g^q, wherever the rows that moved are independent by a safe margin.

    Without it an operator that misses its targets would only lose the statements that need them.
    """
    independent = it.smallest_singular_values[..., None] >= FULL_RANK
    places = independent & it.block_moved
    if it.exact and places.any():
        targets = np.broadcast_to(it.targets, places.shape)[places]
        lengths = np.broadcast_to(it.block_update_norms[..., None], places.shape)[places]
        reached = targets + it.block_deviations[places]
        yield Claim("alignment", "eq. 4.3", targets, reached, lengths)


def _exact(it: Measured) -> Iterator[Claim]:
    known, start, eta_l = it.constants, float(it.run.values[0]), it.eta_l
    linear_gain, gain = bounds.weighted_gradient_bound(known, it.gradient_norms)
    lower = bounds.common_descent_bound(known, it.gradient_norms, eta_l)
    yield _descent(it, "common_descent", "Lemma A.8", gain, lower)
    lower = bounds.linear_common_descent_bound(known, it.gradient_norms, eta_l)
    yield _descent(it, "linear_common_descent", "Lemma A.9", linear_gain, lower)
    floor = [bounds.stationarity_floor(known, row, eta_l) for row in it.client_gradient_norms]
    useful = np.array(floor) > 0
    yield Claim("stationarity_floor", "extension", floor, it.gradient_norms, 0.0, useful)
    whole = bounds.convergence_bound(known, start, **it.rates)
    yield _mean_square(it, "convergence", "Theorem A.4", whole)
    norm = bounds.average_norm_bound(known, start, **it.rates)
    mean, useful = it.gradient_norms.mean(), np.array(norm.total < known.gradient_bound)
    yield Claim("average_norm", "Corollary A.10", mean, norm.total, 0.0, useful)


def _residual(it: Measured) -> Iterator[Claim]:
    known, eta_l = it.constants, it.eta_l
    terms = [bounds.residual_term(known, row, eta_l) for row in it.deviations]
    lower = bounds.common_descent_bound(known, it.gradient_norms, eta_l)
    gain = known.c * it.gradient_norms**2
    yield _descent(it, "residual_descent", "Corollary A.12", gain, lower - terms)
    start, mean = float(it.run.values[0]), float(np.mean(terms))
    bound = bounds.residual_bound(known, start, mean_residual=mean, **it.rates)
    yield _mean_square(it, "residual", "Corollary A.12", bound)


def _by_layer(it: Measured) -> Iterator[Claim]:
    """Corollary A.11, or its extension by residuals where a layer misses its targets."""
    yield from _block_drift(it)
    known, start = it.constants, float(it.run.values[0])
    if it.block_deviations.min() >= -FEASIBLE:
        lower = bounds.layerwise_descent_bound(known, it.gradient_norms, it.eta_l)
        gain = known.c * it.gradient_norms**2
        yield _descent(it, "layerwise_descent", "Corollary A.11", gain, lower)
        bound = bounds.layerwise_bound(known, start, **it.rates)
        yield _mean_square(it, "layerwise", "Corollary A.11", bound)
    else:
        missed = _mean_layer_residual(it)
        bound = bounds.layerwise_bound(known, start, mean_residual=missed, **it.rates)
        yield _mean_square(it, "layer_residual", "extension", bound)


def _block_drift(it: Measured) -> Iterator[Claim]:
    curves, where = it.constants.block_smoothness, "Corollary A.11"
    between = block_norms(it.gradient_changes, it.layout) / it.distances[:, None, None]
    quotients = np.stack([it.run.block_curviest, between])
    scale = _quotient_scale(it)[..., None]
    yield Claim("block_smoothness", where, quotients, np.asarray(curves), scale)
    limits = np.stack([_drift_limits(it, curve) for curve in curves], axis=-1)
    sizes = np.linalg.norm(it.run.updates, axis=-1)[..., None]
    useful = limits < _trivial_drift(it)[:, None]
    drifts = block_norms(it.drifts, it.layout)
    yield Claim("block_drift", where, drifts, limits, sizes, useful)


def _mean_layer_residual(it: Measured) -> float:
    layers = zip(np.moveaxis(it.block_deviations, 1, 0), it.constants.block_smoothness, strict=True)
    terms = [
        bounds.residual_term(it.constants, row, it.eta_l, curve)
        for rows, curve in layers
        for row in rows
    ]
    return sum(terms) / it.run.rounds


def _descent(it: Measured, name: str, where: str, gain: Vector, lower: Vector) -> Claim:
    """gain - loss = lower <= <grad F, g>, written gain <= <grad F, g> + loss: both sides >= 0."""
    right = it.descents.sum(-1) + (gain - lower)
    scale = it.gradient_norms * it.update_norms
    return Claim(name, where, gain, right, scale, lower > 0)


def _mean_square(it: Measured, name: str, where: str, bound: Bound) -> Claim:
    mean = float((it.gradient_norms**2).mean())
    useful = bound.total < it.constants.gradient_bound**2
    return Claim(name, where, mean, bound.total, 0.0, useful)
