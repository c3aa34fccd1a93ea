"""The server's requests to its clients through an executor: training, losses, evaluation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedcraft.aggregators.inputs import RoundInput
from fedcraft.attacks import Attackers
from fedcraft.data import Ragged
from fedcraft.engine.executors.executor import Executor
from fedcraft.engine.executors.job import REPORT, SPLITS, Command, Job, Workspace, with_sent
from fedcraft.local import ClientState
from fedcraft.local.fast_sgd.vectorized import group_size
from fedcraft.local.store import ClientStates
from fedcraft.metrics.scores import Scores
from fedcraft.updates import ClientId, Layout

Buffers = dict[str, Tensor]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CohortUpdates:
    """The results of a cohort, row by row in the order of the clients' ids."""

    clients: NDArray[np.int64]
    updates: Tensor
    report: Floats
    states: list[ClientState | None]
    buffers: list[Buffers | None]
    with_losses: bool

    def column(self, name: str) -> Floats:
        """Return one number per client: samples, steps, train_loss, loss or busy."""
        return self.report[:, REPORT.index(name)]

    def reported(self, layout: Layout, client_lr: float) -> RoundInput:
        """Return what a rule is told about the round beside the updates."""
        losses = self.column("loss") if self.with_losses else None
        ids, steps = self.clients.tolist(), self.column("steps")
        return RoundInput(self.column("samples"), layout, ids, losses, steps, client_lr)

    def finite(self, averaged: Mapping[str, Tensor]) -> NDArray[np.bool_]:
        """Mark the clients whose update, state, buffers and (if requested) loss are finite.

        ``averaged`` are the server's buffers into which theirs are averaged: a client may send NaN
        or Inf only where the server has the same (a mask of -inf).
        """
        losses = self.column("loss") if self.with_losses else np.zeros(len(self.clients))
        finite = np.isfinite(losses)
        # A finite sum proves a row finite; an infinite one may be an overflow, so look again.
        for row in np.flatnonzero(~np.isfinite(self.column("total"))):
            finite[row] &= bool(self.updates[row].isfinite().all())
        finite &= [_all_finite(state or {}) for state in self.states]
        finite &= [keeps_finite(averaged, buffers or {}) for buffers in self.buffers]
        return np.asarray(finite)

    def attacked(self, attackers: Attackers, round_index: int) -> None:
        """Replace what hostile clients would have sent: updates, sizes and losses."""
        rows = attackers.forge(self.clients, self.updates, round_index)
        claims = {"samples": attackers.attack.samples, "loss": attackers.attack.loss}
        for name, claim in claims.items():
            if claim is not None:
                self.report[rows, REPORT.index(name)] = claim
        for row in rows:
            self.report[row, REPORT.index("total")] = float(self.updates[row].sum())

    def weighing(self, shares: Mapping[ClientId, float]) -> CohortUpdates:
        """Return the clients that a guard has left in the round, with their weights as samples."""
        clients = self.clients.tolist()
        kept = self.select(np.array([client in shares for client in clients]))
        report = kept.report.copy()
        report[:, REPORT.index("samples")] = [shares[client] for client in kept.clients.tolist()]
        return replace(kept, report=report)

    def without(self, lost: Collection[ClientId]) -> CohortUpdates:
        """Return the clients that are not among ``lost``."""
        return self.select(np.array([client not in lost for client in self.clients.tolist()], bool))

    def select(self, mask: NDArray[np.bool_]) -> CohortUpdates:
        """Return the clients under the mask; the updates of a secure round are not here."""
        if mask.all():
            return self
        rows = np.flatnonzero(mask)
        return CohortUpdates(
            self.clients[mask],
            self.updates[torch.from_numpy(rows)] if len(self.updates) else self.updates,
            self.report[mask],
            [self.states[row] for row in rows],
            [self.buffers[row] for row in rows],
            self.with_losses,
        )


class ClientManager:
    """The clients of a run behind one workspace."""

    def __init__(
        self, job: Job, workspace: Workspace, executor: Executor, *, side_by_side: bool = False
    ) -> None:
        self.job, self.workspace, self.executor = job, workspace, executor
        self._side_by_side = side_by_side
        self._base_sizes = job.federation.train.sizes
        self._one_pass = not job.objective.personal and job.objective.loss is cross_entropy

    def broadcast(self, theta: Tensor, buffers: Buffers | None) -> None:
        """Copy the server's model to the workspace, where the clients read it."""
        self.workspace.theta.copy_(theta)
        self.workspace.buffers.put(self.workspace.broadcast_buffers, buffers)

    def train(
        self,
        clients: NDArray[np.int64],
        states: ClientStates,
        *,
        round_index: int,
        lr: float,
        report_loss: bool,
        sent: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> CohortUpdates:
        """Let the clients train from the broadcast model; the server does not change.

        ``sent`` are tensors that every client receives beside the model.
        """
        count = len(clients)
        self._assign_slots(clients, states, sent)
        workspace, order = self.workspace, self._longest_first(clients)
        if self._side_by_side:
            self._run_groups(Command("group", round_index, lr, report_loss), order)
        else:
            self.executor.run(Command("train", round_index, lr, report_loss), order)
        return CohortUpdates(
            clients,
            workspace.updates[:count],
            workspace.report[:count].copy(),
            [_kept(workspace.after.get(slot)) for slot in range(count)],
            [_kept(workspace.buffers.get(slot)) for slot in range(count)],
            report_loss,
        )

    def _run_groups(self, command: Command, order: list[int]) -> None:
        """Train clients of similar size together, so that little is padded."""
        size = group_size(len(order), self.job.device)
        self.workspace.group_slots[: len(order)], self.workspace.group_slots[-1] = order, len(order)
        groups = range(-(-len(order) // size))
        self.executor.run(command._replace(group=size), groups)

    def losses(self, clients: NDArray[np.int64], round_index: int) -> Floats:
        """Return the clients' mean training losses at the broadcast model."""
        self.workspace.clients[: len(clients)] = clients
        self.executor.run(Command("loss", round_index), self._longest_first(clients))
        return self.workspace.report[: len(clients), REPORT.index("loss")].copy()

    def evaluate(
        self, states: ClientStates, splits: Sequence[str], round_index: int, lr: float
    ) -> dict[str, Scores]:
        """Score all clients: one pass over the concatenated samples, or client by client.

        The second way is for personal models, and for custom losses, which return only means. In
        a virtual federation the underlying clients are scored, unless their models are personal.
        """
        wanted = tuple(s for s in splits if getattr(self.job.federation, s).indices.size)
        if self._one_pass:
            return self._evaluate_samples(wanted, round_index)
        return self._evaluate_clients(states, wanted, round_index, lr)

    def predictor(self, theta: Tensor, buffers: Buffers | None) -> Callable[[Tensor], Tensor]:
        """Return the function from inputs to the logits of a model."""
        module = copy.deepcopy(self.job.module).eval()
        tensors = {**Layout.from_module(module).unflatten(theta), **(buffers or {})}
        module.load_state_dict(tensors)

        def predict(inputs: Tensor) -> Tensor:
            with torch.inference_mode():
                logits: Tensor = module(inputs)
            return logits

        return predict

    def _evaluate_samples(self, splits: tuple[str, ...], round_index: int) -> dict[str, Scores]:
        command = Command("evaluate", round_index, splits=splits)
        self.executor.run(command, range(len(self.job.shards(splits))))
        return {split: self._segment(split) for split in splits}

    def _segment(self, split: str) -> Scores:
        part: Ragged = getattr(self.job.federation, split)
        samples = self.workspace.losses[split].numpy(), self.workspace.correct[split].numpy()
        loss, correct = (np.bincount(part.rows, values, len(part)) for values in samples)
        return _means(part.sizes, loss, correct)

    def _evaluate_clients(
        self, states: ClientStates, splits: tuple[str, ...], round_index: int, lr: float
    ) -> dict[str, Scores]:
        federation, personal = self.job.federation, self.job.objective.personal
        everybody = len(federation) if personal else federation.base_clients
        scores = np.zeros((everybody, len(SPLITS), 2))
        command = Command("personal", round_index, lr, splits=splits)
        for first in range(0, everybody, self.workspace.slots):
            clients = np.arange(first, min(first + self.workspace.slots, everybody))
            self._assign_slots(clients, states)
            self.executor.run(command, self._longest_first(clients))
            scores[clients] = self.workspace.scores[: len(clients)]
        sizes = {split: np.resize(getattr(federation, split).sizes, everybody) for split in splits}
        return {s: _means(sizes[s], *scores[:, SPLITS.index(s)].T) for s in splits}

    def _assign_slots(
        self,
        clients: NDArray[np.int64],
        states: ClientStates,
        sent: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        self.workspace.clients[: len(clients)] = clients
        for slot, client in enumerate(clients.tolist()):
            self.workspace.before.put(slot, with_sent(states.get(client), sent))

    def _longest_first(self, clients: NDArray[np.int64]) -> list[int]:
        sizes = self._base_sizes[clients % len(self._base_sizes)]
        order: list[int] = np.argsort(-sizes, kind="stable").tolist()
        return order


def _means(sizes: NDArray[np.int64], loss: NDArray[Any], correct: NDArray[Any]) -> Scores:
    """Return the means of all clients that have samples, from their sums."""
    clients = np.flatnonzero(sizes)
    counts = sizes[clients]
    return Scores(clients, loss[clients] / counts, correct[clients] / counts, counts)


def _all_finite(content: Mapping[str, Tensor]) -> bool:
    return all(bool(value.isfinite().all()) for value in content.values())


def keeps_finite(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> bool:
    """Tell whether every entry of float buffers is finite or unchanged.

    So a mean over such buffers has no new NaN: -inf and +inf are never added.
    """
    shared = [n for n in before.keys() & after.keys() if before[n].is_floating_point()]
    if not shared or bool(torch.cat([after[n].reshape(-1) for n in shared]).sum().isfinite()):
        return True
    return all(bool((after[n].isfinite() | _same(before[n], after[n])).all()) for n in shared)


def _same(before: Tensor, after: Tensor) -> Tensor:
    return (before == after) | (before.isnan() & after.isnan())


def _kept(content: Mapping[str, Tensor] | None) -> dict[str, Tensor] | None:
    return None if content is None else {name: value.clone() for name, value in content.items()}
