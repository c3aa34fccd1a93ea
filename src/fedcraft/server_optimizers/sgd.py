"""The plain server step."""

from __future__ import annotations

from torch import Tensor

from fedcraft.server_optimizers.optimizer import ServerOptimizer


class Sgd(ServerOptimizer):
    """theta <- theta - lr g_t: the paper's eta_g (section 3.1). Remembers nothing."""

    def displacement(self, direction: Tensor) -> Tensor:
        return self.lr * direction
