"""The rounds of a federation: from the last checkpoint to the last round, tables on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore import log

from fedcraft.aggregators import Certificate
from fedcraft.engine.meter import MemoryGauge, Meter
from fedcraft.engine.numerics import settled
from fedcraft.errors import ClientError
from fedcraft.flower import keys
from fedcraft.flower.intake import Refusal
from fedcraft.flower.ledger import Ledger
from fedcraft.flower.record import recorded
from fedcraft.flower.roster import client_order
from fedcraft.flower.tally import scores_of, summary, without_scores

if TYPE_CHECKING:
    from fedcraft.flower.strategy import Strategy

__all__ = ["Plan", "Rounds"]


@dataclass(frozen=True)
class Plan:
    """What ``Strategy.start`` is asked for."""

    rounds: int
    train_config: ConfigRecord | None
    evaluate_config: ConfigRecord | None
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None


class Rounds:
    """Every round either counts as a whole, in the model and in all tables, or did not happen."""

    def __init__(self, strategy: Strategy, grid: Grid, plan: Plan) -> None:
        self.strategy, self.grid, self.plan = strategy, grid, plan
        self.post, self.session = strategy.post, strategy.post.session
        self.settings = replace(strategy.settings, rounds=max(plan.rounds, 1))
        self.ledger = Ledger(strategy.run_dir, self.settings, recorded(strategy, plan))
        self.meter, self.gauge = Meter(), MemoryGauge()
        self.done = 0

    def run(self) -> Result:
        """Go on to the last round."""
        state, reason = "failed", ""
        try:
            with settled() if self.strategy.one_thread else nullcontext():
                self._begin()
                while self.done < self.plan.rounds:
                    self._advance(self.done + 1)
            self.session.result.arrays = self.session.output
            self.ledger.finish(self.session.output)
            state = "finished"
        except KeyboardInterrupt:
            state, reason = "interrupted", "Ctrl-C"
            raise
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.ledger.close(state, reason, self.done)
        return self.session.result

    def _begin(self) -> None:
        log(INFO, "Starting fedcraft's %s:", self.strategy.method.title)
        self.strategy.summary()
        saved = self.ledger.find()
        if saved is not None:
            self.session.load_state_dict(saved)
            self.done = saved["round"]
            log(INFO, "Going on after round %d of %d", self.done, self.plan.rounds)
        self.ledger.begin(saved)
        if saved is None:
            self._evaluate_centrally(0)

    def _advance(self, number: int) -> None:
        log(INFO, "[ROUND %s/%s]", number, self.plan.rounds)
        row = self._train(number) if self.strategy.fraction_train else {"clients": []}
        if self.settings.evaluates(number) and self.strategy.fraction_evaluate:
            row |= self._evaluate(number)
        self._evaluate_centrally(number)
        self.done = number
        head = {
            "round": number,
            "seconds": self.meter.take(),
            "peak_memory_mb": self.gauge.peak([]),
        }
        self.ledger.add_round({**head, **row}, self.strategy.certificate)
        every = self.settings.checkpoint_every
        if number == self.plan.rounds or (every and number % every == 0):
            self.ledger.save(number, self.session.state_dict())
            self.session.note_saved(self.settings.keep_checkpoints)

    def _train(self, number: int) -> dict[str, Any]:
        refused: list[Refusal] = []
        for attempt in range(1, self.strategy.attempts + 1):
            metrics = self._attempt(number)
            refused += self.post.refusals
            if metrics is not None:
                self.post.failed.clear()
                self.session.result.train_metrics_clientapp[number] = metrics
                return self._row(number, refused, attempt)
            self.post.note_failed()
            log(WARNING, "round %d: too few good replies in attempt %d", number, attempt)
        raise ClientError(
            f"round {number}: fewer than min_clients = {self.strategy.min_clients} good replies in "
            f"{self.strategy.attempts} attempts; missing {self.post.missing}, refused "
            f"{[(r.node, r.reason) for r in refused]}. Mend the clients and start again: with a "
            "run_dir the run goes on from its last checkpoint"
        )

    def _attempt(self, number: int) -> MetricRecord | None:
        started, busy, before = time.perf_counter(), self.post.seconds, self.session.snapshot()
        config = self.plan.train_config or ConfigRecord()
        letters = self.strategy.configure_train(number, self.session.record, config, self.grid)
        replies = self.post.exchange(self.grid, letters)
        arrays, metrics = self.strategy.aggregate_train(number, replies)
        self._clock(started, busy, "train", "aggregate")
        if arrays is None:
            self.session.restore(before)  # a subclass may reject a round after it was aggregated
            return None
        self.session.adopt(arrays)
        self.session.result.arrays = arrays
        log(INFO, "aggregate_train: %s", _shown(metrics))
        return metrics or MetricRecord()

    def _evaluate(self, number: int) -> dict[str, Any]:
        started, busy = time.perf_counter(), self.post.seconds
        config = self.plan.evaluate_config or ConfigRecord()
        letters = self.strategy.configure_evaluate(number, self.session.record, config, self.grid)
        replies = self.post.exchange(self.grid, letters)
        metrics = self.strategy.aggregate_evaluate(number, replies)
        self._clock(started, busy, "evaluate", "evaluate")
        if metrics is not None:
            self.session.result.evaluate_metrics_clientapp[number] = metrics
            log(INFO, "aggregate_evaluate: %s", _shown(metrics))
        scores = scores_of(self.strategy.scores)
        self.ledger.add_scores(number, scores)
        self.ledger.add_reports(number, map(without_scores, self.strategy.scores), split="test")
        problems = {"missing": self.post.missing, "refused": list(map(_plain, self.post.refusals))}
        found: dict[str, Any] = {"evaluation_problems": problems} if any(problems.values()) else {}
        return found | ({"evaluation": summary(scores)} if scores else {})

    def _evaluate_centrally(self, number: int) -> None:
        if self.plan.evaluate_fn is None:
            return
        metrics = self.plan.evaluate_fn(number, self.session.output)
        if metrics is not None:
            self.session.result.evaluate_metrics_serverapp[number] = metrics
            log(INFO, "evaluate_fn: %s", _shown(metrics))

    def _row(self, number: int, refused: list[Refusal], attempt: int) -> dict[str, Any]:
        good, missing, step = self.session.intake.accepted, self.post.missing, self.strategy.step
        self.ledger.add_reports(number, good)
        dropped = {*missing, *(r.client for r in refused if r.client is not None)}
        row = {
            "clients": [reply.client for reply in good],
            "dropped": sorted(dropped, key=client_order),
            "missing": missing,
            "refused": [_plain(refusal) for refusal in refused],
            "attempts": attempt,
            "states_lost": [r.client for r in good if r.metrics.get(keys.STATE_LOST)],
            "client_lr": self.strategy.client_lr,
        }
        if step is None:
            return row
        row |= {"conflicts": _conflicts(step.certificate), "update_norm": step.update_norm}
        return row if step.length is None else {**row, "step_length": step.length}

    def _clock(self, started: float, busy: float, waiting: str, working: str) -> None:
        work = self.post.seconds - busy
        self.meter.seconds[working] += work
        self.meter.seconds[waiting] += time.perf_counter() - started - work


def _plain(refusal: Refusal) -> dict[str, Any]:
    """Return a refusal for JSON; node ids have 64 bits, more than some readers' numbers."""
    return {
        "node": str(refusal.node),
        "client": refusal.client,
        "kind": refusal.kind,
        "reason": refusal.reason,
    }


def _shown(metrics: MetricRecord | None) -> str:
    return ", ".join(
        f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in (metrics or {}).items()
    )


def _conflicts(certificate: Certificate | None) -> dict[str, int] | None:
    if certificate is None:
        return None
    return {
        "average": certificate.overall_conflicts_average,
        "reference": certificate.overall_conflicts_reference,
        "after": certificate.overall_conflicts_after,
    }
