"""The rounds of a federation: from the last checkpoint to the last round, with their tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any

import tomli_w
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore import log

from fedcraft.config.settings import Settings
from fedcraft.engine.loop import write_round
from fedcraft.engine.private import BudgetSpent
from fedcraft.engine.profiling import PeakMemory, PhaseTimer
from fedcraft.errors import ClientError
from fedcraft.flower.messages import keys
from fedcraft.flower.messages.arrays import copy_tensors
from fedcraft.flower.server.client_metrics import scores_of, table_rows
from fedcraft.flower.server.replies import RefusedReply
from fedcraft.flower.server.run_config import find_checkpoint, open_run
from fedcraft.flower.server.secure_rounds import SecureRounds
from fedcraft.metrics.scores import summary
from fedcraft.updates import client_order

if TYPE_CHECKING:
    from fedcraft.flower.server.strategy import Strategy


@dataclass
class Rounds:
    """Runs the rounds: each counts completely, in the model and in all tables, or not at all."""

    strategy: Strategy
    grid: Grid
    config: dict[str, Any]
    settings: Settings
    rounds: int
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None

    def __post_init__(self) -> None:
        strategy = self.strategy
        self.state, self.messenger = strategy.state, strategy.messenger
        self.secure: SecureRounds | None = None
        if strategy.secure is not None:
            self.secure = SecureRounds(strategy.secure, self.grid, self.messenger)
        self.writer = open_run(strategy.run_dir, self.settings.keep_checkpoints)
        self.timer, self.memory = PhaseTimer(), PeakMemory()
        self.done = 0

    def run(self) -> Result:
        """Run all rounds that are left."""
        status, reason = "failed", ""
        with closing(self.writer):
            try:
                self._begin()
                reason = self._advance_all()
                output = self.state.result.arrays = self.state.output
                self.writer.save_model(copy_tensors(output))
                status = "finished"
            except KeyboardInterrupt:
                status, reason = "interrupted", "Ctrl-C"
                raise
            except BaseException as error:
                reason = f"{type(error).__name__}: {error}"
                raise
            finally:
                self.writer.end(status, reason, self.done)
        return self.state.result

    def _advance_all(self) -> str:
        """Run the rounds that are left; return why the run ends early, if it does."""
        while self.done < self.rounds:
            try:
                self._advance(self.done + 1)
            except BudgetSpent as error:
                log(WARNING, "The run ends after round %d: %s", self.done, error)
                return str(error)
        return ""

    def _begin(self) -> None:
        self.strategy.summary()
        saved = find_checkpoint(self.writer, self.config)
        if saved is not None:
            self.state.load_state_dict(saved)
            self.done = saved["round"]
            log(INFO, "Continuing after round %d of %d", self.done, self.rounds)
        self._continue_account(resumed=saved is not None)
        self.writer.begin(saved, config=tomli_w.dumps(self.config).encode())
        if saved is None:
            self._evaluate_centrally(0)

    def _advance(self, number: int) -> None:
        log(INFO, "[ROUND %s/%s]", number, self.rounds)
        row = self._train(number)
        if self.settings.evaluates(number):
            row |= self._evaluate(number)
        self._evaluate_centrally(number)
        self.done = number
        peak = self.memory.peak([])
        row = {"round": number, "seconds": self.timer.take(), "peak_memory_mb": peak, **row}
        write_round(self.writer, row, self.strategy.certificate, self.settings)
        every = self.settings.checkpoint_every
        if number == self.rounds or (every and number % every == 0):
            saved = {**self.state.state_dict(), "config": self.config, "round": number}
            self.writer.save_checkpoint(saved)
            self.state.note_saved(self.settings.keep_checkpoints)

    def _train(self, number: int) -> dict[str, Any]:
        refused: list[RefusedReply] = []
        for attempt in range(1, self.strategy.attempts + 1):
            before = self.state.snapshot()
            with self._timed("train", "aggregate"):
                configure, config = self.strategy.configure_train, self.train_config
                messages = list(configure(number, self.state.broadcast, config, self.grid))
                if not messages:
                    return {"clients": []}
                self._enter_account(messages)
                arrays, metrics = self._aggregated(number, messages)
            refused += self.messenger.refused
            if arrays is not None:
                self.state.adopt(arrays)
                metrics = metrics or MetricRecord()
                if self.state.private is not None:
                    metrics["epsilon"] = self.state.private.accountant.epsilon()
                self.state.result.train_metrics_clientapp[number] = metrics
                log(INFO, "aggregate_train: %s", metrics)
                self.strategy.selection.failed.clear()
                return self._row(number, refused, attempt)
            self.state.restore(before)  # a subclass may reject a round after it was aggregated
            self.strategy.selection.note_failed()
            log(WARNING, "round %d: too few good replies in attempt %d", number, attempt)
        raise ClientError(
            f"round {number}: fewer than min_clients = {self.strategy.min_clients} good replies in "
            f"{self.strategy.attempts} attempts; {self._problems(refused)}. Repair the clients and "
            "start again: with a run_dir the run continues from its last checkpoint"
        )

    def _problems(self, refused: list[RefusedReply]) -> str:
        """Say who gave no good reply, and why; of nodes that refuse a secure round, why one did."""
        client, objections = self.state.clients.client, self.messenger.objections
        silent = [who for who in self.messenger.missing if who not in map(client, objections)]
        found = f"missing {silent}, refused {[(r.node, r.reason) for r in refused]}"
        if not objections:
            return found
        node, reason = min(objections.items())
        return f"{found}; {len(objections)} refused the secure round, node {node} because: {reason}"

    def _continue_account(self, *, resumed: bool) -> None:
        """Continue the account of the privacy budget, which is newer than the checkpoint."""
        saved = self.writer.find_account()
        if self.state.private is not None and (resumed or saved is not None):
            self.state.private.accountant.load_state_dict(saved)

    def _enter_account(self, messages: list[Message]) -> None:
        """Count the clients, on disk too, before they are asked: a crash must not forget them."""
        if self.state.private is not None:
            nodes = [message.metadata.dst_node_id for message in messages]
            self.state.private.ask(nodes, self.state.clients)
            self.writer.save_account(self.state.private.accountant.state_dict())

    def _aggregated(
        self, number: int, messages: list[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if self.secure is None:
            replies = self.messenger.send(self.grid, messages)
            return self.strategy.aggregate_train(number, replies)
        metrics = self.secure.train(number, messages)
        enough = len(self.state.updates.accepted) >= self.strategy.min_clients
        return (self.state.record, metrics) if metrics is not None and enough else (None, None)

    def _evaluate(self, number: int) -> dict[str, Any]:
        with self._timed("evaluate", "evaluate"):
            configure, config = self.strategy.configure_evaluate, self.evaluate_config
            messages = list(configure(number, self.state.output, config, self.grid))
            if not messages:
                return {}
            replies = self.messenger.send(self.grid, messages)
            metrics = self.strategy.aggregate_evaluate(number, replies)
        if metrics is not None:
            self.state.result.evaluate_metrics_clientapp[number] = metrics
            log(INFO, "aggregate_evaluate: %s", metrics)
        scores = scores_of(self.state.scores)
        self.writer.add_values(table_rows(number, self.state.scores, evaluation=True))
        refused = [reply.row() for reply in self.messenger.refused]
        problems = {"missing": self.messenger.missing, "refused": refused}
        found: dict[str, Any] = {"evaluation_problems": problems} if any(problems.values()) else {}
        return found | ({"evaluation": summary(scores)} if scores else {})

    def _evaluate_centrally(self, number: int) -> None:
        if self.evaluate_fn is None:
            return
        metrics = self.evaluate_fn(number, self.state.output)
        if metrics is not None:
            self.state.result.evaluate_metrics_serverapp[number] = metrics
            log(INFO, "evaluate_fn: %s", metrics)

    def _row(self, number: int, refused: list[RefusedReply], attempt: int) -> dict[str, Any]:
        good, missing, step = self.state.updates.accepted, self.messenger.missing, self.state.step
        self.writer.add_values(table_rows(number, good, evaluation=False))
        dropped = {*missing, *(r.client for r in refused if r.client is not None)}
        row = {
            "clients": [reply.client for reply in good],
            "dropped": sorted(dropped, key=client_order),
            "missing": missing,
            "refused": [reply.row() for reply in refused],
            "attempts": attempt,
            "states_lost": [r.client for r in good if r.metrics.get(keys.STATE_LOST)],
            "client_lr": self.state.client_lr,
        }
        return row if step is None else row | step.row()

    @contextmanager
    def _timed(self, waiting: str, working: str) -> Iterator[None]:
        """Add the time spent on replies to one phase, and the time spent waiting to another."""
        started, busy = time.perf_counter(), self.messenger.seconds
        yield
        work = self.messenger.seconds - busy
        self.timer.seconds[working] += work
        self.timer.seconds[waiting] += time.perf_counter() - started - work
