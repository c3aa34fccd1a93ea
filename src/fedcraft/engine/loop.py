"""The round loop: the paper's Algorithm 1, with the failures that occur in practice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedcraft.aggregators import Certificate
from fedcraft.attacks import Attackers, left_out_shares
from fedcraft.attacks.poisoning import Backdoor
from fedcraft.config.settings import Settings
from fedcraft.engine.callbacks import Callback
from fedcraft.engine.client_manager import ClientManager, CohortUpdates
from fedcraft.engine.interrupt import Halt
from fedcraft.engine.participation import Participation, Reports
from fedcraft.engine.private import BudgetSpent
from fedcraft.engine.profiling import PeakMemory, PhaseTimer
from fedcraft.engine.server import Server, ServerStep, require_clients
from fedcraft.engine.server import TooFewClients as TooFewClients
from fedcraft.engine.stopping import Stopping
from fedcraft.errors import NonFiniteError
from fedcraft.local.store import ClientStates
from fedcraft.metrics.scores import Scores, summary
from fedcraft.runs.writer import NullWriter
from fedcraft.updates import ClientId, client_order

_HELD_OUT = ("test", "validation")
_START: Mapping[str, Any] = {"round": 0, "clients": [], "dropped": []}


@dataclass(eq=False)
class Loop:
    """Rounds 1..T of one run. Every round either counts completely or leaves no trace."""

    settings: Settings
    clients: ClientManager
    server: Server
    states: ClientStates
    writer: NullWriter
    callbacks: Sequence[Callback]
    stop_requested: Callable[[], bool]
    participation: Participation
    attackers: Attackers | None
    extra: Mapping[str, Any]  # further entries of a checkpoint

    def __post_init__(self) -> None:
        self.stopping = Stopping(self.settings)
        self.round, self.reason, self.diverged = 0, "", False
        self._meter, self._gauge = PhaseTimer(), PeakMemory()
        private, population = self.server.private, self.server.population
        if private is not None and population is not None and self.participation.uniform:
            private.claim_sampling(population)

    def run(self) -> str:
        """Train to the last round or a stop condition; return ``finished`` or ``stopped``.

        ``Halt`` leaves the loop at the end of the last whole round.
        """
        if not self.writer.rows and self.settings.evaluates(0):  # theta_0: round 0 of the tables
            row = dict(_START)
            self._score_into(row)
            self._close_row(row, None)
        while self.round < self.settings.rounds and not self.reason:
            if self.stop_requested():
                raise Halt
            self._advance()
        return "stopped" if self.reason else "finished"

    def evaluate(self) -> dict[str, Scores]:
        """Score all clients with the present model; nothing is written."""
        splits = ("test", "train", "validation") if self.settings.evaluate_train_loss else _HELD_OUT
        return self._evaluate(self.server.output, splits)

    def _evaluate(self, model: Tensor, splits: tuple[str, ...]) -> dict[str, Scores]:
        self.clients.broadcast(model, self.server.buffers)
        lr = self.settings.client_lr_at(self.round)
        return self.clients.evaluate(self.states, splits, self.round, lr)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs besides the tables."""
        return {
            "round": self.round,
            "server": self.server.state_dict(),
            "stopping": self.stopping.state_dict(),
            "initial": self.clients.workspace.initial,
            **({"participation": memory} if (memory := self.participation.memory) else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.round = state["round"]
        self.server.load_state_dict(state["server"])
        self.stopping.load_state_dict(state["stopping"])
        self.participation.memory = state.get("participation", self.participation.memory)
        self.reason = self.stopping.verdict() or self.participation.over() or ""
        self.clients.workspace.initial.copy_(state["initial"])
        self.states.load(state["clients"])

    def _stop_short(self, reason: str) -> None:
        """End at the last whole round, whose row is written again if it was not evaluated."""
        self.reason = reason
        row = dict(self.writer.rows[-1] if self.writer.rows else _START)
        if "evaluation" in row:
            return
        self._meter.give_back(row.pop("seconds", {}))
        row.pop("peak_memory_mb", None)
        self._score_into(row)
        self._close_row(row, None)

    def _advance(self) -> None:
        lr = self.settings.client_lr_at(self.round)
        try:
            reports = self._collect(lr)
            step = self._aggregate(reports.trained, lr)
            reports = _without(reports, step.lost)
        except BudgetSpent as error:
            self._stop_short(str(error))
            return
        except NonFiniteError as error:
            if self.settings.nonfinite != "stop":
                raise
            self.diverged = True
            self._stop_short(f"not finite: {error}")
            return
        self.round, self.participation.memory = self.round + 1, reports.memory
        row = self._row(reports, lr, step)
        self.reason = self.stopping.out_of_time() or self.participation.over() or ""
        planned = self.settings.evaluates(self.round)
        if planned or self.reason:
            self._score_into(row)
        # The others do not count towards patience: a run that continues would not have evaluated.
        if planned and "mean" in row["evaluation"]:
            self.reason = self.stopping.after_evaluation(row["evaluation"]["mean"]) or self.reason
        self._close_row(row, step.certificate)

    def _collect(self, lr: float) -> Reports:
        """Let clients train, and return the updates that the server gets and can use."""
        reports = self.participation.collect(self.round, partial(self._train, lr))
        trained = reports.trained
        self._require_clients(len(trained.clients))
        if self.attackers is not None:
            trained.attacked(self.attackers, self.round)
        finite = trained.finite(self.server.averaged)
        bad: list[int] = trained.clients[~finite].tolist()
        if bad and self.settings.nonfinite != "drop":
            raise NonFiniteError(
                f"round {self.round + 1}: NaN or Inf in the update, loss, buffers or state of "
                f"client(s) {bad}; lower client_lr, or set nonfinite to 'drop' or 'stop'"
            )
        self._require_clients(int(finite.sum()))
        return replace(reports, trained=trained.select(finite), lost=sorted([*reports.lost, *bad]))

    def _train(self, lr: float, clients: NDArray[np.int64]) -> CohortUpdates:
        if not len(clients):
            self._require_clients(0)
        with self._meter.phase("train"):
            self.clients.broadcast(self.server.start, self.server.buffers)
            trained = self.clients.train(
                clients,
                self.states,
                round_index=self.round,
                lr=lr,
                report_loss=self.server.wants_losses,
                sent=self.server.aggregator.sent,
            )
        self._meter.idle(self.clients.executor.size, float(trained.column("busy").sum()))
        return trained

    def _require_clients(self, found: int) -> None:
        require_clients(self.settings, self.round, found)

    def _aggregate(self, trained: CohortUpdates, lr: float) -> ServerStep:
        def losses_at(theta: Tensor, clients: Sequence[int]) -> Sequence[float]:
            self.clients.broadcast(theta, self.server.buffers)
            losses: list[float] = self.clients.losses(np.asarray(clients), self.round).tolist()
            return losses

        with self._meter.phase("aggregate"):
            step = self.server.step(trained, self.round, lr, losses_at)
            kept = trained.without(step.lost)  # of the others, the round leaves no trace
            for client, state in zip(kept.clients.tolist(), kept.states, strict=True):
                if state is not None:
                    self.states.put(client, state, self.round + 1)
        return step

    def _row(self, reports: Reports, lr: float, step: ServerStep) -> dict[str, Any]:
        return {
            "round": self.round,
            "clients": reports.trained.clients.tolist(),
            "dropped": reports.lost,
            "client_lr": lr,
            "local_loss": float(np.mean(reports.trained.column("train_loss"))),
            **reports.row,
            **step.row(),
        }

    def _score_into(self, row: dict[str, Any]) -> None:
        with self._meter.phase("evaluate"):
            scores = self.evaluate()
            row["evaluation"] = summary(scores)
            if self.settings.model_average != "none":
                last = self._evaluate(self.server.theta, _HELD_OUT)
                row["evaluation_last"] = summary(last)
        row |= self._attack_row(row)
        self.writer.add_scores(self.round, scores)
        for callback in self.callbacks:
            callback.on_evaluate(self.round, scores)

    def _attack_row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return whom the guard has left out so far, and whether a backdoor works."""
        found: dict[str, Any] = {}
        if self.server.aggregator.guard is not None:
            rounds = [*self.writer.rows, row]
            found["left_out_shares"] = left_out_shares(rounds, self.attackers)
        if self.attackers is not None and isinstance(self.attackers.attack, Backdoor):
            predict = self.clients.predictor(self.server.output, self.server.buffers)
            job = self.clients.job
            rows = job.federation.test.indices
            found["backdoor"] = self.attackers.attack.success(predict, job.tensors, rows)
        return found

    def _close_row(self, row: dict[str, Any], certificate: Certificate | None) -> None:
        peak = self._gauge.peak(self.clients.executor.pids())
        seconds = self._meter.take()
        whole = {"round": row["round"], "seconds": seconds, "peak_memory_mb": peak, **row}
        write_round(self.writer, whole, certificate, self.settings)
        for callback in self.callbacks:
            callback.on_round(whole)
        every, minutes = self.settings.checkpoint_every, self.settings.checkpoint_minutes
        if self.round and self.writer.checkpoint_due(self.round, every, minutes):
            self.save()

    def save(self) -> None:
        """Write a checkpoint of the last whole round."""
        split_hash = self.clients.job.federation.split_hash
        state = {**self.state_dict(), "split_hash": split_hash, **self.extra}
        self.writer.save_checkpoint(state, self.states)


def _without(reports: Reports, lost: Collection[ClientId]) -> Reports:
    """Return the reports without clients that were lost while the server aggregated."""
    gone: list[Any] = sorted([*reports.lost, *lost], key=client_order)
    return replace(reports, trained=reports.trained.without(lost), lost=gone)


def write_round(
    writer: NullWriter, row: dict[str, Any], certificate: Certificate | None, settings: Settings
) -> None:
    """Add a round to a run's tables, with its certificate, and log whom a guard left out."""
    if certificate is None:
        writer.add_round(row)
        return
    diagnosed = settings.diagnoses(row["round"])
    writer.add_round(
        row,
        certificate.rows() if diagnosed else (),
        certificate.client_rows(everybody=diagnosed),
        certificate.cosines(by_layer=diagnosed) if settings.diagnostics_every else (),
    )
    if certificate.left_out:
        named = (f"{client} ({why})" for client, why in certificate.left_out.items())
        writer.log(f"round {row['round']}: the guard left out {', '.join(named)}")
