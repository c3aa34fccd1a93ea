"""A run of CRAFT with gradient steps and full participation, with a record of all quantities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcraft.aggregators import Aggregator
from fedcraft.errors import InputError
from fedcraft.theory.problem import SmoothProblem, Vector
from fedcraft.updates import Layout


@dataclass(frozen=True)
class LocalWork:
    """What one client did in one round, and the largest quotients on its path."""

    update: Vector  # g_i = theta_t - theta_i
    gradient: Vector  # grad f_i(theta_t)
    steepest: float  # max_k ||grad f_i(theta^k)||
    curviest: float  # max_k ||grad f_i(theta^k) - grad f_i(theta_t)|| / ||theta^k - theta_t||
    block_curviest: Vector  # (Q,): the same for the layers of the gradient


@dataclass(frozen=True)
class Trajectory:
    """T rounds of N clients in d coordinates."""

    values: Vector  # (T + 1,): F(theta_t)
    points: Vector  # (T + 1, d): theta_t
    gradients: Vector  # (T, N, d): grad f_i(theta_t)
    last_gradients: Vector  # (N, d): grad f_i(theta_T)
    updates: Vector  # (T, N, d): g_i
    directions: Vector  # (T, d): g_t
    steepest: Vector  # (T, N)
    curviest: Vector  # (T, N)
    block_curviest: Vector  # (T, N, Q)

    @property
    def rounds(self) -> int:
        return len(self.directions)


def train(
    problem: SmoothProblem,
    rule: Aggregator,
    *,
    rounds: int,
    eta_l: float,
    eta_g: float,
    steps: Sequence[int],
    layout: Layout,
    start: Vector,
) -> Trajectory:
    """Run theta_{t+1} = theta_t - eta_g g_t (eq. 3.4) with K_i = ``steps[i]`` gradient steps.

    Cost: T sum_i K_i + N gradients and T aggregations; keeps 2 T (N + 1) d numbers.
    """
    theta = np.array(start, dtype=np.float64)
    points, rows, directions = [theta], [], []
    for _ in range(rounds):
        works = [
            local_work(problem, client, theta, eta_l, count, layout)
            for client, count in enumerate(steps)
        ]
        updates = np.stack([work.update for work in works])
        step = rule.aggregate(updates, weights=problem.weights, layers=layout)
        theta = theta - eta_g * step.direction
        rows.append(works)
        directions.append(step.direction)
        points.append(theta)
    return Trajectory(
        values=np.array([_objective(problem, point) for point in points]),
        points=np.array(points),
        gradients=np.array([[work.gradient for work in works] for works in rows]),
        last_gradients=np.array([problem.gradient(i, theta) for i in range(len(steps))]),
        updates=np.array([[work.update for work in works] for works in rows]),
        directions=np.array(directions),
        steepest=np.array([[work.steepest for work in works] for works in rows]),
        curviest=np.array([[work.curviest for work in works] for works in rows]),
        block_curviest=np.array([[work.block_curviest for work in works] for works in rows]),
    )


def local_work(
    problem: SmoothProblem, client: int, theta: Vector, eta_l: float, steps: int, layout: Layout
) -> LocalWork:
    """Take K_i gradient steps from theta_t (eq. 3.2) and keep g_i = eta_l sum_k grad f_i(theta^k).

    The sum, not the difference of two models, so that small updates lose no digits.
    """
    if steps < 1:
        raise InputError(f"steps: expected at least 1 for client {client}, found {steps}")
    first = problem.gradient(client, theta)
    update, steepest, curviest = eta_l * first, float(np.linalg.norm(first)), 0.0
    blocks = np.zeros(len(layout))
    for _ in range(steps - 1):
        gradient = problem.gradient(client, theta - update)
        change, distance = gradient - first, float(np.linalg.norm(update))
        if distance > 0:
            curviest = max(curviest, float(np.linalg.norm(change)) / distance)
            blocks = np.maximum(blocks, block_norms(change, layout) / distance)
        steepest = max(steepest, float(np.linalg.norm(gradient)))
        update = update + eta_l * gradient
    return LocalWork(update, first, steepest, curviest, blocks)


def block_norms(vectors: Vector, layout: Layout) -> Vector:
    """Norms of the layers along the last axis: (..., d) -> (..., Q)."""
    return np.stack([np.linalg.norm(vectors[..., s], axis=-1) for s in layout.slices], axis=-1)


def _objective(problem: SmoothProblem, theta: Vector) -> float:
    return float(sum(w * problem.value(i, theta) for i, w in enumerate(problem.weights)))
