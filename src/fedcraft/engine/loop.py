"""The round loop: the paper's Algorithm 1, with everything that can go wrong in practice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedcraft.aggregators import Certificate
from fedcraft.engine.callbacks import Callback
from fedcraft.engine.crew import Halt
from fedcraft.engine.fleet import Fleet, Scores, Trained
from fedcraft.engine.journal import Journal
from fedcraft.engine.meter import MemoryGauge, Meter
from fedcraft.engine.sampling import Sampler, draw_clients
from fedcraft.engine.server import Server, ServerStep
from fedcraft.engine.settings import Settings
from fedcraft.engine.stopping import Stopping
from fedcraft.errors import FedcraftError, NonFiniteError
from fedcraft.local.store import ClientStates
from fedcraft.metrics.fairness import summarise

__all__ = ["Loop", "TooFewClients"]

_START: Mapping[str, Any] = {"round": 0, "clients": [], "dropped": []}


class TooFewClients(FedcraftError, RuntimeError):
    """Fewer clients than ``min_clients`` are left in a round."""


class Loop:
    """Rounds 1..T of one run. Every round either counts as a whole or did not happen."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        server: Server,
        states: ClientStates,
        journal: Journal,
        callback: Callback,
        halted: Callable[[], bool],
        sampler: Sampler = draw_clients,
    ) -> None:
        self.settings, self.fleet, self.server = settings, fleet, server
        self.states, self.journal, self.callback = states, journal, callback
        self.stopping = Stopping(settings)
        self.round = 0
        self.reason = ""
        self.extra: dict[str, Any] = {}  # what else a checkpoint should carry
        self._halted, self._sampler = halted, sampler
        self._meter, self._gauge = Meter(), MemoryGauge()

    def run(self) -> str:
        """Go on to the last round or a stop condition; return ``finished`` or ``stopped``.

        ``Halt`` leaves the loop at the end of the last whole round.
        """
        if not self.journal.rows and self.settings.evaluates(0):
            self._begin_row()
        while self.round < self.settings.rounds and not self.reason:
            if self._halted():
                raise Halt
            self._advance()
        return "stopped" if self.reason else "finished"

    def evaluate(self) -> dict[str, Scores]:
        """Score all clients with the present model; nothing is written."""
        self.fleet.broadcast(self.server.output, self.server.buffers)
        lr = self.settings.client_lr_at(self.round)
        return self.fleet.evaluate(self.states, self._splits(), self.round, lr)

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs beside the tables."""
        return {
            "round": self.round,
            "server": self.server.state_dict(),
            "stopping": self.stopping.state_dict(),
            "initial": self.fleet.desk.initial,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.round = state["round"]
        self.server.load_state_dict(state["server"])
        self.stopping.load_state_dict(state["stopping"])
        self.reason = self.stopping.verdict() or ""
        self.fleet.desk.initial.copy_(state["initial"])
        self.states.load(state["clients"])

    def _begin_row(self) -> None:
        """Evaluate theta_0: round 0 of the tables."""
        row = dict(_START)
        self._score_into(row)
        self._close_row(row, None)

    def _stop_short(self, reason: str) -> None:
        """End at the last whole round, whose row is written again if it was not evaluated."""
        self.reason = reason
        row = dict(self.journal.rows[-1] if self.journal.rows else _START)
        if "evaluation" in row:
            return
        self._meter.give_back(row.pop("seconds", {}))
        row.pop("peak_memory_mb", None)
        self._score_into(row)
        self._close_row(row, None)

    def _advance(self) -> None:
        index = self.round
        lr = self.settings.client_lr_at(index)
        drawn = self._sampler(self.settings, len(self.fleet.job.federation), index)
        try:
            trained, dropped = self._train(drawn.present, lr)
            step = self._aggregate(trained, lr)
        except NonFiniteError as error:
            if self.settings.nonfinite != "stop":
                raise
            self._stop_short(f"not finite: {error}")
            return
        self.round = index + 1
        row = self._row(trained, sorted([*drawn.absent.tolist(), *dropped]), lr, step)
        self.reason = self.stopping.out_of_time() or ""
        if self.settings.evaluates(self.round):
            self._evaluate_into(row)
        elif self.reason:
            # Not counted towards patience: the run that goes on from here would not have looked.
            self._score_into(row)
        self._close_row(row, step.certificate)

    def _train(self, clients: np.ndarray[Any, Any], lr: float) -> tuple[Trained, list[int]]:
        self._require_clients(len(clients))
        with self._meter.phase("train"):
            self.fleet.broadcast(self.server.theta, self.server.buffers)
            trained = self.fleet.train(
                clients,
                self.states,
                round_index=self.round,
                lr=lr,
                report_loss=self.server.wants_losses,
            )
        self._meter.idle(self.fleet.crew.size, float(trained.column("busy").sum()))
        finite = trained.finite(self.server.averaged)
        bad: list[int] = trained.clients[~finite].tolist()
        if bad and self.settings.nonfinite != "drop":
            raise NonFiniteError(
                f"round {self.round + 1}: NaN or Inf in the update, loss, buffers or state of "
                f"client(s) {bad}; lower client_lr, or set nonfinite to 'drop' or 'stop'"
            )
        self._require_clients(int(finite.sum()))
        return trained.select(finite), bad

    def _require_clients(self, found: int) -> None:
        if found < self.settings.min_clients:
            raise TooFewClients(
                f"round {self.round + 1}: {found} client(s) left of "
                f"{self.settings.clients_per_round}, and min_clients is {self.settings.min_clients}"
            )

    def _aggregate(self, trained: Trained, lr: float) -> ServerStep:
        def losses_at(theta: Tensor, clients: Sequence[int]) -> Sequence[float]:
            self.fleet.broadcast(theta, self.server.buffers)
            losses: list[float] = self.fleet.losses(np.asarray(clients), self.round).tolist()
            return losses

        with self._meter.phase("aggregate"):
            step = self.server.step(trained, lr, losses_at)
            for client, state in zip(trained.clients.tolist(), trained.states, strict=True):
                if state is not None:
                    self.states.put(client, state, self.round + 1)
        return step

    def _row(
        self, trained: Trained, dropped: list[int], lr: float, step: ServerStep
    ) -> dict[str, Any]:
        row = {
            "round": self.round,
            "clients": trained.clients.tolist(),
            "dropped": dropped,
            "client_lr": lr,
            "local_loss": float(np.mean(trained.column("train_loss"))),
            "conflicts": _conflicts(step.certificate),
            "update_norm": step.update_norm,
        }
        return row if step.length is None else {**row, "step_length": step.length}

    def _evaluate_into(self, row: dict[str, Any]) -> None:
        """Evaluate theta_t, and see whether that ends the run."""
        self._score_into(row)
        mean = row["evaluation"].get("mean")
        if mean is not None:
            self.reason = self.stopping.after_evaluation(mean) or self.reason

    def _score_into(self, row: dict[str, Any]) -> None:
        with self._meter.phase("evaluate"):
            scores = self.evaluate()
            row["evaluation"] = _summary(scores)
        self.journal.add_scores(self.round, scores)
        self.callback.on_evaluate(self.round, scores)

    def _close_row(self, row: dict[str, Any], certificate: Certificate | None) -> None:
        peak = self._gauge.peak(self.fleet.crew.pids())
        whole = {
            "round": row["round"],
            "seconds": self._meter.take(),
            "peak_memory_mb": peak,
            **row,
        }
        self.journal.add_round(whole, certificate)
        self.callback.on_round(whole)
        if self.round and self.journal.checkpoint_due(self.round):
            self.save()

    def save(self) -> None:
        """Write a checkpoint of the last whole round."""
        if self.journal.directory is None:
            return
        split_hash = self.fleet.job.federation.split_hash
        state = {**self.state_dict(), "split_hash": split_hash, **self.extra}
        self.journal.save_checkpoint(state, self.states)

    def _splits(self) -> tuple[str, ...]:
        wanted = ("test", "train", "validation")
        return wanted if self.settings.evaluate_train_loss else ("test", "validation")


def _conflicts(certificate: Certificate | None) -> dict[str, int] | None:
    if certificate is None:
        return None
    return {
        "average": certificate.overall_conflicts_average,
        "reference": certificate.overall_conflicts_reference,
        "after": certificate.overall_conflicts_after,
    }


def _summary(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Return the numbers of an evaluation: fairness over the clients, losses over the samples."""
    found: dict[str, float] = {}
    for split, score in scores.items():
        found[f"{split}_loss"] = float(np.average(score.loss, weights=score.samples))
    if "test" in scores:
        found |= summarise(scores["test"].accuracy, scores["test"].samples)
    if "validation" in scores:
        found["validation_mean"] = float(scores["validation"].accuracy.mean())
    return found
