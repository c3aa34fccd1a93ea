"""The left-hand sides: the quantities of appendix A, measured in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedcraft.theory.bounds import Rates
from fedcraft.theory.constants import Constants, constants
from fedcraft.theory.problem import SmoothProblem, Vector
from fedcraft.theory.trajectory import Trajectory, block_norms
from fedcraft.updates import Layout


@dataclass(frozen=True)
class Measured:
    """A run together with its setting; every property is one array of the analysis."""

    problem: SmoothProblem
    run: Trajectory
    layout: Layout
    steps: Sequence[int]
    targets: Vector
    eta_l: float
    eta_g: float
    exact: bool  # no clip, tau or released code keeps the step from its targets

    @cached_property
    def constants(self) -> Constants:
        """The problem's constants, with G and G^q the largest norms of this run."""
        return constants(
            self.problem,
            steps=self.steps,
            update_bound=float(self.update_norms.max()),
            layout=self.layout,
            block_update_bounds=self.block_update_norms.max(axis=0),
            targets=self.targets,
        )

    @property
    def rates(self) -> Rates:
        """The rates and the number of rounds, as the bounds take them."""
        return {"eta_l": self.eta_l, "eta_g": self.eta_g, "rounds": self.run.rounds}

    @cached_property
    def gradient(self) -> Vector:
        """(T, d): grad F(theta_t) = sum_i rho_i grad f_i(theta_t)."""
        return np.asarray(np.einsum("n,tnd->td", self.problem.weights, self.run.gradients))

    @cached_property
    def gradient_norms(self) -> Vector:
        """(T,): ||grad F(theta_t)||."""
        return np.asarray(np.linalg.norm(self.gradient, axis=-1))

    @cached_property
    def client_gradient_norms(self) -> Vector:
        """(T, N): ||grad f_i(theta_t)||."""
        return np.asarray(np.linalg.norm(self.run.gradients, axis=-1))

    @cached_property
    def update_norms(self) -> Vector:
        """(T,): ||g_t||."""
        return np.asarray(np.linalg.norm(self.run.directions, axis=-1))

    @cached_property
    def block_update_norms(self) -> Vector:
        """(T, Q): ||g_t^q||."""
        return block_norms(self.run.directions, self.layout)

    @cached_property
    def descents(self) -> Vector:
        """(T, Q): <grad^q F, g_t^q>; their sum over layers is <grad F, g_t>."""
        products = self.gradient * self.run.directions
        return np.stack([products[:, s].sum(-1) for s in self.layout.slices], axis=-1)

    @cached_property
    def drifts(self) -> Vector:
        """(T, N, d): e_i = g_i - eta_l K_i grad f_i(theta_t) (eq. A.5)."""
        scale = self.eta_l * np.asarray(self.steps, dtype=np.float64)
        return np.asarray(self.run.updates - scale[:, None] * self.run.gradients)

    @cached_property
    def gradient_changes(self) -> Vector:
        """(T, N, d): grad f_i(theta_{t+1}) - grad f_i(theta_t)."""
        return np.diff(self.run.gradients, axis=0, append=self.run.last_gradients[None])

    @cached_property
    def distances(self) -> Vector:
        """(T,): ||theta_{t+1} - theta_t||, infinite where the model did not move."""
        lengths = np.linalg.norm(np.diff(self.run.points, axis=0), axis=-1)
        return np.where(lengths > 0, lengths, np.inf)

    @cached_property
    def deviations(self) -> Vector:
        """(T, N): delta = U g_t - p for the whole vector."""
        return self._deviations(slice(0, self.layout.dimension))

    @cached_property
    def block_deviations(self) -> Vector:
        """(T, Q, N): delta^q = U^q g_t^q - p."""
        return np.stack([self._deviations(block) for block in self.layout.slices], axis=1)

    @cached_property
    def smallest_singular_values(self) -> Vector:
        """(T, Q): sigma_min of the rows of U^q that moved, 0 if they outnumber the coordinates."""
        return np.stack([self._conditioning(block) for block in self.layout.slices], axis=-1)

    @cached_property
    def block_moved(self) -> npt.NDArray[np.bool_]:
        """(T, Q, N): g_i^q is not zero."""
        return np.moveaxis(block_norms(self.run.updates, self.layout) > 0, -1, 1)

    def _deviations(self, block: slice) -> Vector:
        alignment = np.einsum("tnd,td->tn", self._units(block), self.run.directions[:, block])
        # <0, g> = p ||0||: a client that did not move is aligned by definition.
        moved = np.linalg.norm(self.run.updates[..., block], axis=-1) > 0
        return np.asarray(np.where(moved, alignment - self.targets, 0.0))

    def _conditioning(self, block: slice) -> Vector:
        units = self._units(block)
        values = np.linalg.svd(units, compute_uv=False)
        moved = np.count_nonzero(np.any(units != 0, axis=-1), axis=-1)
        # A zero row only adds a zero at the end, so the rows that moved come first.
        last = np.take_along_axis(values, np.clip(moved - 1, 0, values.shape[1] - 1)[:, None], 1)
        return np.where(moved <= units.shape[2], last[:, 0], 0.0)

    def _units(self, block: slice) -> Vector:
        rows = self.run.updates[..., block]
        lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
        return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))
