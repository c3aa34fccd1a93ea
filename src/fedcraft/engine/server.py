"""The server's part of a round: from updates to theta_{t+1}."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcraft.aggregators import Aggregator, Certificate
from fedcraft.aggregators.base import Step
from fedcraft.aggregators.inputs import RoundInput
from fedcraft.config.settings import Settings
from fedcraft.engine.client_manager import CohortUpdates
from fedcraft.engine.model_average import AverageKind, ModelAverage
from fedcraft.engine.private import PrivateRounds, SimulatedPrivacy
from fedcraft.errors import ConfigError, FedcraftError, NonFiniteError
from fedcraft.privacy import Privacy
from fedcraft.secure import Secure
from fedcraft.server_optimizers import ServerOptimizer
from fedcraft.updates import ClientId, Layout, RoundContext, as_layout, merge_buffers

_FEW = 4
Remote = Callable[[Aggregator], tuple[Step, dict[str, Any]]]
LossesAt = Callable[[Tensor, Sequence[int]], Sequence[float]]


class TooFewClients(FedcraftError, RuntimeError):
    """Fewer clients than ``min_clients`` are left in a round."""


@dataclass(frozen=True)
class ServerStep:
    """What a round did to the model."""

    certificate: Certificate | None
    update_norm: float
    length: float | None = None
    secure: dict[str, Any] | None = None  # what happened in a secure round
    lost: frozenset[ClientId] = frozenset()  # clients that have trained but are not in the step
    privacy: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Return the part of a round's row that is about the step."""
        row: dict[str, Any] = {"conflicts": None, "update_norm": self.update_norm}
        if self.certificate is not None:
            row["conflicts"] = self.certificate.conflicts()
            if self.certificate.left_out:
                row["left_out"] = list(self.certificate.left_out)
        if self.length is not None:
            row["step_length"] = self.length
        if self.secure is not None:
            row["secure"] = self.secure
        return row | self.privacy


class Server:
    """theta, the aggregator and the optimiser, and the average of the iterates where one is kept.

    With a look-ahead lambda, clients start from theta_t - lambda step_t, where the next step is
    likely to lead (Nesterov's idea), and theta_t is evaluated and saved. A round that fails leaves
    everything as it was.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        optimizer: ServerOptimizer,
        theta: Tensor,
        layout: Layout,
        settings: Settings,
        buffers: dict[str, Tensor] | None = None,
        population: int | None = None,
    ) -> None:
        self.aggregator, self.optimizer, self.layout = aggregator, optimizer, layout
        self.population = population  # of all clients, where it is known
        self.theta, self.buffers, self.settings = theta, buffers, settings
        self.ahead: Tensor | None = None  # lambda step_t
        kind = _average_kind(settings, aggregator)
        self.average = None if kind is None else ModelAverage(kind)
        self.secure = Secure.from_table(settings.secure)
        privacy = Privacy.from_table(settings.privacy)
        self.private: PrivateRounds | None = (
            None if privacy is None else SimulatedPrivacy(privacy, settings, aggregator)
        )
        if self.secure is not None or self.private is not None:
            refuse_buffers(self.averaged)
        if self.secure is not None:
            refuse_rows(aggregator, self.secure)

    @property
    def wants_losses(self) -> bool:
        """Tell whether clients must report their loss at theta_t."""
        return "losses" in self.aggregator.needs

    @property
    def output(self) -> Tensor:
        """The model that is evaluated and saved: theta, or the average of the iterates."""
        if self.average is None or self.average.mean is None:
            return self.optimizer.evaluated(self.theta)
        return self.average.mean

    @property
    def start(self) -> Tensor:
        """The model that clients receive: theta, or the look-ahead from it."""
        return self.theta if self.ahead is None else self.theta - self.ahead

    @property
    def averaged(self) -> dict[str, Tensor]:
        """The buffers into which those of the clients are averaged."""
        return self.buffers or {} if self.settings.buffers == "mean" else {}

    def step(
        self,
        trained: CohortUpdates,
        index: int,
        client_lr: float,
        losses_at: LossesAt,
        remote: Remote | None = None,
    ) -> ServerStep:
        """Aggregate the cohort of round ``index`` and move theta: theta_{t+1} = theta_t - step.

        ``remote`` aggregates updates that are not here.
        """
        before = self.snapshot()
        context = RoundContext(
            theta=self.start,
            index=index,
            rounds=self.settings.rounds,
            client_lr=client_lr,
            server_lr=self.optimizer.lr * self.settings.server_rate_at(index),
            layout=self.layout,
            clients=self.population,
            measures_clients=self.settings.diagnoses(index + 1),
        )
        self.aggregator.context = self.optimizer.context = context
        try:
            return self._step(trained, context, losses_at, remote)
        except BaseException:
            self.restore(before)
            raise

    def _step(
        self,
        trained: CohortUpdates,
        context: RoundContext,
        losses_at: LossesAt,
        remote: Remote | None,
    ) -> ServerStep:
        asked = trained.clients.tolist()
        outcome, secure = self._aggregate(trained, context, remote)
        direction, certificate = outcome.direction, outcome.certificate
        lost = frozenset(secure["lost"]) if secure is not None else frozenset()
        if certificate is not None:
            lost |= frozenset(certificate.dropped)
        trained = trained.without(lost)
        if self.private is not None:
            direction = self.private.released(direction, len(trained.clients), context.index)
            certificate = self.private.shown(certificate)
        length = self._search(direction, losses_at)
        if length is not None:
            direction = direction * (length / self.optimizer.lr)
        step = self.optimizer.step(direction)
        if self.settings.server_lr_schedule != "constant":
            step = step * self.settings.server_rate_at(context.index)
        norm = float(torch.linalg.vector_norm(step))
        if not np.isfinite(norm):
            raise NonFiniteError(
                f"the server's step is not finite (norm {norm}); a smaller server_lr or client_lr "
                "usually helps"
            )
        if outcome.shares is not None:
            trained = trained.weighing(outcome.shares)
        wanted = self.settings.look_ahead
        ahead = outcome.look_ahead if wanted == "auto" else float(wanted or 0)
        self._move(step, ahead, trained)
        spent = {}
        if self.private is not None:
            self.private.count(asked)
            spent = self.private.row(context.index + 1)
        return ServerStep(certificate, norm, length, secure, lost, spent)

    def _aggregate(
        self, trained: CohortUpdates, context: RoundContext, remote: Remote | None
    ) -> tuple[Step, dict[str, Any] | None]:
        """Let the rule aggregate the updates, or what secure aggregation shows of them."""
        given, updates = trained.reported(self.layout, context.client_lr), trained.updates
        if self.private is not None:
            given = replace(given, weights=None)  # data sizes are private
            updates = self.private.leaving(updates, trained.clients.tolist(), context.index)
        if remote is not None:
            return remote(self.aggregator)
        if self.secure is None:
            return self.aggregator.aggregate(updates, **vars(given)), None
        from fedcraft.secure.simulation import simulate_round

        step, report = simulate_round(
            self.aggregator,
            updates,
            self.layout,
            given,
            self.secure,
            seed=self.settings.seed,
            index=context.index,
            model=self.start,
        )
        left = len(trained.clients) - len(report.lost)
        if self.private is not None:
            self.private.require_noise(left)
        require_clients(self.settings, context.index, left)
        return step, asdict(report)

    def _move(self, step: Tensor, look_ahead: float, trained: CohortUpdates) -> None:
        self.theta = self.theta - step
        self.ahead = look_ahead * step if look_ahead else None
        if self.average is not None:
            self.average.update(self.theta)
        sent = [buffers for buffers in trained.buffers if buffers is not None]
        if self.buffers is not None and sent:
            weights = trained.column("samples").tolist()
            self.buffers = merge_buffers(self.buffers, sent, weights, self.settings.buffers)

    def _search(self, direction: Tensor, losses_at: LossesAt) -> float | None:
        """Let a rule with a line search evaluate losses along its direction."""
        rule: Any = self.aggregator
        if not getattr(rule, "wants_line_search", False):
            return None

        def losses(length: float) -> Sequence[float]:
            return losses_at(self.start - length * direction, rule.searched_clients)

        found: float = rule.line_search(losses, self.optimizer.lr)
        return found

    def adopt(self, theta: Tensor, buffers: dict[str, Tensor] | None) -> None:
        """Continue from a model that other code has changed after the last step."""
        if self.average is not None:
            self.average.shift_last(theta - self.theta)
        self.theta, self.buffers = theta, buffers

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next round depends on."""
        account = {} if self.private is None else {"privacy": self.private.accountant.state_dict()}
        return {**self.snapshot(), **account}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.restore(state)
        if self.private is not None:
            self.private.accountant.load_state_dict(state.get("privacy"))

    def snapshot(self) -> dict[str, Any]:
        """Return what :meth:`restore` can undo: all but the account of what was released."""
        return {
            "theta": self.theta,
            "ahead": self.ahead,
            "buffers": self.buffers,
            "aggregator": self.aggregator.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
        }

    def restore(self, before: Mapping[str, Any]) -> None:
        """Undo all changes since a snapshot."""
        self.theta, self.buffers = before["theta"], before["buffers"]
        self.ahead = before.get("ahead")  # 0.1.0 had none
        self.aggregator.load_state_dict(before["aggregator"])
        self.optimizer.load_state_dict(before["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(before["average"])


def require_clients(settings: Settings, index: int, found: int) -> None:
    """Raise ``TooFewClients`` if a round has fewer clients than ``min_clients``."""
    if found < settings.min_clients:
        raise TooFewClients(
            f"round {index + 1}: {found} client(s) left of {settings.clients_per_round}, and "
            f"min_clients is {settings.min_clients}"
        )


def refuse_rows(rule: Aggregator, options: Secure) -> None:
    """Raise ``InputError`` if a rule needs what secure rounds hide, as a tiny round of it shows.

    Whatever else is wrong in that round, a real one shows better.
    """
    from fedcraft.secure.simulation import simulate_round

    rows = torch.eye(_FEW) * min(1.0, options.bound or 1.0)
    layout, ones = as_layout(None, _FEW), np.ones(_FEW)
    given = RoundInput(ones, layout, range(_FEW), losses=ones, steps=ones, client_lr=1.0)
    trial = replace(options, protocol="arithmetic", dropouts={})
    try:
        simulate_round(deepcopy(rule), rows, layout, given, trial, seed=0, index=0, model=rows[0])
    except Exception as error:
        if "secure: this rule" in str(error):
            raise


def refuse_buffers(averaged: Mapping[str, Tensor]) -> None:
    """Raise an error if clients would send buffers that nothing hides."""
    shown = sorted(name for name, value in averaged.items() if value.is_floating_point())
    if shown:
        raise ConfigError(
            f"buffers: clients would send theirs ({shown[0]}, ...) in the clear. Set buffers "
            '= "keep", or use a model without running statistics.'
        )


def _average_kind(settings: Settings, aggregator: Aggregator) -> AverageKind | None:
    """The average that the settings ask for, or else the one that is part of the rule (AFL)."""
    if settings.model_average != "none":
        return settings.model_average
    return "mean" if getattr(aggregator, "evaluate_average", False) else None
