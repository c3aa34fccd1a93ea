"""Server momentum (FedAvgM)."""

from __future__ import annotations

from torch import Tensor

from fedcraft.errors import require
from fedcraft.server_optimizers.optimizer import ServerOptimizer


class Momentum(ServerOptimizer):
    """v <- beta v + g_t, theta <- theta - lr v, v = 0 at first (Hsu et al. 2019, FedAvgM).

    * ``dampened=True`` has v <- beta v + (1 - beta) g_t: smaller by exactly 1 - beta, which matters
      on a fixed grid of rates. The default is the original method's; its long-run rate is
      lr / (1 - beta).
    * ``nesterov=True`` steps along g_t + beta v (the same damping applied to g_t).

    Remembers one vector. A round with g_t = 0 still moves the model: v only decays.
    """

    def __init__(
        self, *, lr: float = 1.0, beta: float = 0.9, dampened: bool = False, nesterov: bool = False
    ) -> None:
        super().__init__(lr=lr)
        require(0 <= beta < 1, "beta", "a number in [0, 1)", beta)
        self.beta, self.dampened, self.nesterov = beta, dampened, nesterov

    def displacement(self, direction: Tensor) -> Tensor:
        fresh = (1 - self.beta) * direction if self.dampened else direction
        velocity = self.beta * self._recall("velocity", direction) + fresh
        self.memory = {"velocity": velocity}
        return self.lr * (fresh + self.beta * velocity if self.nesterov else velocity)
