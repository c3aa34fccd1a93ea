"""Muon on the server: momentum whose matrices are orthogonalised."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedcraft.errors import require
from fedcraft.server_optimizers.optimizer import ServerOptimizer
from fedcraft.updates import TensorSlot

_QUINTIC = (3.4445, -4.7750, 2.0315)


class Muon(ServerOptimizer):
    """v <- beta v + g_t; every weight matrix M of v is replaced by s O(M), with O near U V^T

    for M = U S V^T: all its directions get about the same length. The two FedMuon papers
    orthogonalise every step of the clients, whose momentum the server averages and whose steps are
    mixed with its last one (arXiv:2510.27403), or which are corrected by control variates
    (arXiv:2509.26337); here only the server's step is, and clients train as usual.
    Tensors of more than two axes are matrices of their first axis by all others; vectors (biases,
    norms) take the plain momentum step. O is five steps of the Newton-Schulz iteration
    X <- a X + b (X X^T) X + c (X X^T)^2 X from X = M / ||M||, with Jordan's coefficients, which
    bring singular values between about 0.7 and 1.2. Remembers one vector.

    * ``scale``: ``"momentum"`` has s = ||M|| / ||O||, so that only the geometry differs from
      FedAvgM, and its rates still fit; ``"muon"`` has s = sqrt(max(1, rows / columns)), as in the
      original optimiser, where the rate alone sets the length.

    The shapes come from the model's layout; where a caller gives none, every layer is a vector.
    """

    def __init__(
        self,
        *,
        lr: float = 1.0,
        beta: float = 0.9,
        scale: Literal["momentum", "muon"] = "momentum",
        steps: int = 5,
    ) -> None:
        super().__init__(lr=lr)
        require(0 <= beta < 1, "beta", "a number in [0, 1)", beta)
        require(scale in ("momentum", "muon"), "scale", "'momentum' or 'muon'", scale)
        require(steps > 0, "steps", "at least 1", steps)
        self.beta, self.scale, self.steps = beta, scale, steps

    def displacement(self, direction: Tensor) -> Tensor:
        velocity = self.beta * self._recall("velocity", direction) + direction
        self.memory = {"velocity": velocity}
        step = velocity.clone()
        for slot in self._matrices():
            part = slice(slot.start, slot.stop)
            matrix = velocity[part].view(slot.shape[0], -1)
            step[part] = self._orthogonal(matrix).reshape(-1)
        return self.lr * step

    def _matrices(self) -> list[TensorSlot]:
        layout = self.context.layout if self.context else None
        return [slot for slot in layout.tensors if len(slot.shape) > 1] if layout else []

    def _orthogonal(self, matrix: Tensor) -> Tensor:
        length = torch.linalg.matrix_norm(matrix)
        if length == 0:
            return matrix
        found = newton_schulz(matrix / length, self.steps)
        rows, columns = matrix.shape
        stretch: Tensor = length / torch.linalg.matrix_norm(found)
        if self.scale == "muon":
            stretch = torch.full_like(length, max(1.0, rows / columns) ** 0.5)
        return found * stretch


def newton_schulz(matrix: Tensor, steps: int) -> Tensor:
    """Return p(p(...(M))) with p(X) = a X + b (X X^T) X + c (X X^T)^2 X, on the shorter side."""
    first, second, third = _QUINTIC
    found = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    for _ in range(steps):
        gram = found @ found.T
        found = first * found + (second * gram + third * gram @ gram) @ found
    return found if matrix.shape[0] <= matrix.shape[1] else found.T
