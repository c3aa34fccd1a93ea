"""The contract of a federated problem in the theory."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


@runtime_checkable
class SmoothProblem(Protocol):
    """F(theta) = sum_i rho_i f_i(theta) (eq. 3.1) with the constants of assumptions A.1 to A.3.

    The constants must hold for every client and every theta; ``check`` tests them only at the
    points that the run visits.
    """

    @property
    def dimension(self) -> int:
        """Number of coordinates d."""

    @property
    def weights(self) -> Vector:
        """rho (N,): positive, summing to one."""

    @property
    def smoothness(self) -> float:
        """L with ||grad f_i(a) - grad f_i(b)|| <= L ||a - b|| (assumption A.1)."""

    @property
    def gradient_bound(self) -> float:
        """G_f with ||grad f_i|| <= G_f (assumption A.3)."""

    @property
    def lower_bound(self) -> float:
        """F* with F >= F* (assumption A.2)."""

    def value(self, client: int, theta: Vector) -> float:
        """f_i(theta)."""

    def gradient(self, client: int, theta: Vector) -> Vector:
        """Gradient of f_i at theta."""

    def block_smoothness(self, block: slice) -> float:
        """L_q with ||grad^q f_i(a) - grad^q f_i(b)|| <= L_q ||a - b|| (corollary A.11).

        ``smoothness`` is always a valid answer.
        """
