"""Random problems on which the theory is checked, each in several ways of running CRAFT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcraft.errors import FedcraftError
from fedcraft.seeds import generator
from fedcraft.theory.check import Report, check
from fedcraft.theory.logistic import LogisticProblem, random_logistic


@dataclass(frozen=True)
class Instance:
    """A problem, how it is trained, and where it starts: all drawn from (seed, index)."""

    seed: int
    index: int
    curvature: float
    heterogeneity: float
    noise: float
    sizes: tuple[int, ...]  # n_i
    layers: tuple[int, ...]  # d_q, each at least N
    steps: tuple[int, ...]  # K_i
    eta_l: float
    eta_g: float
    rounds: int
    clip: float

    def problem(self, dimension: int | None = None) -> LogisticProblem:
        """Draw the data; ``dimension`` replaces sum_q d_q to make the clients too many."""
        return random_logistic(
            generator(self.seed, "theory-data", self.index),
            self.sizes,
            dimension or sum(self.layers),
            heterogeneity=self.heterogeneity,
            noise=self.noise,
            curvature=self.curvature,
        )

    def run(self, mode: str) -> Report:
        """Check the theory in one of ``MODES``; to lose a statement of ``EXACT`` is an error."""
        report = MODES[mode](self)
        missing = [name for name in EXACT.get(mode, ()) if name not in report]
        if missing:
            where = f"instance {self.index}, {mode}"
            raise FedcraftError(f"{where}: the step misses its targets, no {missing}\n{report}")
        return report


def random_instance(seed: int, index: int, max_rounds: int = 120) -> Instance:
    """Draw everything at random, every second problem non-convex."""
    rng = generator(seed, "theory-instance", index)
    clients = int(rng.integers(2, 7))
    layers = clients + rng.integers(0, 6, size=rng.integers(2, 4))
    most_steps = int(rng.integers(1, 9))
    return Instance(
        seed=seed,
        index=index,
        curvature=float(10 ** rng.uniform(-3, -1)) if index % 2 else 0.0,
        heterogeneity=float(rng.uniform(0, 2)),
        noise=float(rng.choice([0.0, 0.1, 0.3])),
        sizes=tuple(int(n) for n in rng.integers(6, 60, size=clients)),
        layers=tuple(int(size) for size in layers),
        steps=tuple(int(k) for k in rng.integers(1, most_steps + 1, size=clients)),
        eta_l=float(10 ** rng.uniform(-3, 0)),
        eta_g=float(10 ** rng.uniform(-2.5, 0)),
        rounds=int(np.exp(rng.uniform(np.log(4), np.log(max_rounds)))),
        clip=float(rng.uniform(0.1, 0.7)),
    )


def _check(instance: Instance, problem: LogisticProblem, **options: Any) -> Report:
    start = generator(instance.seed, "theory-start", instance.index)
    return check(
        problem,
        rounds=instance.rounds,
        eta_l=instance.eta_l,
        eta_g=instance.eta_g,
        steps=instance.steps,
        start=start.standard_normal(problem.dimension),
        **options,
    )


def _whole(instance: Instance) -> Report:
    """The paper's theorem: whole vector, targets met exactly."""
    return _check(instance, instance.problem())


def _layers(instance: Instance) -> Report:
    """Layer by layer, each wide enough for all clients."""
    return _check(instance, instance.problem(), layers=instance.layers)


def _clipped(instance: Instance) -> Report:
    """Whole vector, steps cut to a length that most of them exceed."""
    return _check(instance, instance.problem(), clip=instance.clip)


def _crowded(instance: Instance) -> Report:
    """More clients than coordinates: least squares."""
    return _check(instance, instance.problem(max(1, len(instance.sizes) - 1)))


def _narrow_layer(instance: Instance) -> Report:
    """Layer by layer, the first too narrow for all clients."""
    first, *others = instance.layers
    narrow = max(1, len(instance.sizes) - 1)
    layers = (narrow, first - narrow + others[0], *others[1:])
    return _check(instance, instance.problem(), layers=layers)


def _one_sided(instance: Instance) -> Report:
    """U g >= 1/N by layer: no case of the paper, but its proofs cover it."""
    options = {"constraint": "at_least", "target": "uniform"}
    return _check(instance, instance.problem(), layers=instance.layers, **options)


MODES: dict[str, Callable[[Instance], Report]] = {
    "whole": _whole,
    "layers": _layers,
    "clipped": _clipped,
    "crowded": _crowded,
    "narrow_layer": _narrow_layer,
    "one_sided": _one_sided,
}
EXACT: dict[str, tuple[str, ...]] = {
    "whole": ("alignment", "convergence"),
    "layers": ("alignment", "convergence", "layerwise"),
    "one_sided": ("alignment", "convergence", "layerwise"),
}
"""What must apply to the runs that can meet their targets."""
