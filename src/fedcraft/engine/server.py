"""The server's part of a round: from updates to theta_{t+1}."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcraft.aggregators import Aggregator, Certificate
from fedcraft.aggregators.afl import IterateAverage
from fedcraft.engine.client_manager import CohortUpdates
from fedcraft.errors import NonFiniteError
from fedcraft.server_optimizers import ServerOptimizer
from fedcraft.updates import BufferPolicy, Layout, merge_buffers

LossesAt = Callable[[Tensor, Sequence[int]], Sequence[float]]


@dataclass(frozen=True)
class ServerStep:
    """What a round did to the model."""

    certificate: Certificate | None
    update_norm: float
    length: float | None = None


class Server:
    """theta, the aggregator and the optimiser, and for AFL the average of the iterates.

    A round that fails leaves all of them as they were.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        optimizer: ServerOptimizer,
        theta: Tensor,
        layout: Layout,
        *,
        buffers: dict[str, Tensor] | None = None,
        buffer_policy: BufferPolicy = "mean",
    ) -> None:
        self.aggregator, self.optimizer, self.layout = aggregator, optimizer, layout
        self.theta, self.buffers = theta, buffers
        self._buffer_policy = buffer_policy
        averages = getattr(aggregator, "evaluate_average", False)
        self.average = IterateAverage() if averages else None

    @property
    def wants_losses(self) -> bool:
        """Tell whether clients must report their loss at theta_t."""
        return "losses" in self.aggregator.needs

    @property
    def output(self) -> Tensor:
        """The model that is evaluated: theta, or the average of the iterates (AFL)."""
        if self.average is None or self.average.mean is None:
            return self.theta
        return self.average.mean

    @property
    def averaged(self) -> dict[str, Tensor]:
        """The buffers into which those of the clients are averaged."""
        return self.buffers or {} if self._buffer_policy == "mean" else {}

    def step(self, trained: CohortUpdates, client_lr: float, losses_at: LossesAt) -> ServerStep:
        """Aggregate a cohort and move theta: theta_{t+1} = theta_t - step."""
        before = self.snapshot()
        try:
            return self._step(trained, client_lr, losses_at)
        except BaseException:
            self.restore(before)
            raise

    def _step(self, trained: CohortUpdates, client_lr: float, losses_at: LossesAt) -> ServerStep:
        outcome = self.aggregator.aggregate(
            trained.updates,
            weights=trained.column("samples"),
            layers=self.layout,
            client_ids=trained.clients.tolist(),
            losses=trained.column("loss") if trained.with_losses else None,
            steps=trained.column("steps"),
            client_lr=client_lr,
        )
        direction: Tensor = outcome.direction
        length = self._search(direction, losses_at)
        if length is not None:
            direction = direction * (length / self.optimizer.lr)
        step = self.optimizer.step(direction)
        norm = float(torch.linalg.vector_norm(step))
        if not np.isfinite(norm):
            raise NonFiniteError(
                f"the server's step is not finite (norm {norm}); a smaller server_lr or client_lr "
                "usually helps"
            )
        self._move(step, trained)
        return ServerStep(outcome.certificate, norm, length)

    def _move(self, step: Tensor, trained: CohortUpdates) -> None:
        self.theta = self.theta - step
        if self.average is not None:
            self.average.update(self.theta)
        sent = [buffers for buffers in trained.buffers if buffers is not None]
        if self.buffers is not None and sent:
            weights = trained.column("samples").tolist()
            self.buffers = merge_buffers(self.buffers, sent, weights, self._buffer_policy)

    def _search(self, direction: Tensor, losses_at: LossesAt) -> float | None:
        """Let a rule with a line search evaluate losses along its direction."""
        rule: Any = self.aggregator
        if not getattr(rule, "wants_line_search", False):
            return None

        def losses(length: float) -> Sequence[float]:
            return losses_at(self.theta - length * direction, rule.searched_clients)

        found: float = rule.line_search(losses, self.optimizer.lr)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next round depends on."""
        return {
            "theta": self.theta,
            "buffers": self.buffers,
            "aggregator": self.aggregator.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.theta, self.buffers = state["theta"], state["buffers"]
        self.aggregator.load_state_dict(state["aggregator"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])

    def snapshot(self) -> tuple[Any, ...]:
        """Return everything that a step changes, for :meth:`restore`."""
        average = None if self.average is None else self.average.state_dict()
        states = self.aggregator.state_dict(), self.optimizer.state_dict(), average
        return (self.theta, self.buffers, *states)

    def restore(self, before: tuple[Any, ...]) -> None:
        """Undo all changes since a snapshot."""
        self.theta, self.buffers, aggregator, optimizer, average = before
        self.aggregator.load_state_dict(aggregator)
        self.optimizer.load_state_dict(optimizer)
        if self.average is not None:
            self.average.load_state_dict(average)
