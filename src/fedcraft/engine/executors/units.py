"""The work of one unit, a client or a shard of an evaluation: the same in every executor."""

from __future__ import annotations

import copy
import traceback
from dataclasses import replace
from functools import cache, cached_property
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedcraft.engine.executors.job import (
    REPORT,
    SPLITS,
    Command,
    Job,
    Shard,
    Workspace,
    without_sent,
)
from fedcraft.errors import ClientError, ConfigError
from fedcraft.local import ClientData, LocalResult, LocalTask, SeedAddress
from fedcraft.local.fast_sgd.model import scratch_model
from fedcraft.local.fast_sgd.vectorized import GroupTrainer
from fedcraft.local.objective import autocast

_CPU = torch.device("cpu")


class UnitFailure(NamedTuple):
    """The client whose code failed, if it is known, and the message with its traceback."""

    client: int | None
    text: str


class UnitRunner:
    """Runs units with one model, reset in place for each; reads and writes only the workspace.

    Model and samples are on the job's device for good; the workspace is in the CPU's memory.
    """

    def __init__(self, job: Job, workspace: Workspace) -> None:
        self.job, self.workspace = replace(job, tensors=job.tensors.to(job.device)), workspace
        self._device = job.device
        # Later only the mode of the root is checked, so all parts must start in the same mode.
        self.model = scratch_model(copy.deepcopy(job.module).train().to(job.device))
        self._shards = cache(job.shards)
        self._actions = {
            "train": self._train,
            "group": self._train_group,
            "loss": self._loss,
            "personal": self._score_client,
            "evaluate": self._score_shard,
        }

    def run(self, command: Command, unit: int) -> None:
        """Run one unit; raise ``ClientError`` with the traceback if the client's code fails."""
        try:
            self._actions[command.kind](command, unit)
        except Exception as error:
            client = None
            name = "a group of clients" if command.kind == "group" else "an evaluation shard"
            if command.kind in ("train", "loss", "personal"):
                client = int(self.workspace.clients[unit])
                name = f"client {client}"
            text = traceback.format_exc().rstrip()
            failure = ClientError(f"{text}\n\n{name} failed in round {command.round + 1}")
            failure.client = client
            raise failure from error

    def _train(self, command: Command, slot: int) -> None:
        started = perf_counter()
        task, row = self._task(command, slot), self.workspace.updates[slot]
        out = row if self._device == _CPU else torch.empty_like(task.theta)
        result = self.job.objective.train(self.model, task, out)
        if out is not row:
            row.copy_(out)
        self._report(slot, result, perf_counter() - started)

    def _train_group(self, command: Command, unit: int) -> None:
        started = perf_counter()
        members, first = int(self.workspace.group_slots[-1]), unit * command.group
        slots = self.workspace.group_slots[first : min(first + command.group, members)].tolist()
        tasks = [self._task(command, slot, _CPU) for slot in slots]
        rows = [self.workspace.updates[slot] for slot in slots]
        with autocast(self.job.device, self.job.precision):
            results = self._group_trainer.train(tasks, rows)
        for slot, task, result in zip(slots, tasks, results, strict=True):
            if command.report_loss:
                before = self.job.objective.loss_at(self.model, task.theta, task.data)
                result = replace(result, loss=before)
            self._report(slot, result, (perf_counter() - started) / len(slots))

    @cached_property
    def _group_trainer(self) -> GroupTrainer:
        trainer = self.job.group_trainer()
        if trainer is None:
            raise ConfigError("executor: these clients cannot be trained side by side")
        return trainer

    def _report(self, slot: int, result: LocalResult, seconds: float) -> None:
        workspace = self.workspace
        workspace.after.put(slot, self._back(result.state))
        workspace.buffers.put(slot, self._back(result.buffers))
        loss = float("nan") if result.loss is None else result.loss
        # A sum is finite unless the row holds NaN or Inf, or is about to overflow anyway.
        total = float(workspace.updates[slot].sum())
        numbers = (result.samples, result.steps, result.train_loss, loss, total)
        workspace.report[slot] = (*numbers, seconds)

    def _loss(self, command: Command, slot: int) -> None:
        task = self._task(command, slot)
        self._load_buffers()
        loss = self.job.objective.loss_at(self.model, task.theta, task.data)
        self.workspace.report[slot, REPORT.index("loss")] = loss

    def _score_client(self, command: Command, slot: int) -> None:
        task = self._task(command, slot)
        self._load_buffers()
        self.model.load(self.job.objective.personal_vector(self.model, task))
        self.model.module.eval()
        for split in command.splits:
            rows = self.job.federation.rows(task.address.client, split)
            data = ClientData(self.job.tensors, rows)
            score = self.job.objective.score(self.model, data)
            self.workspace.scores[slot, SPLITS.index(split)] = score

    @torch.no_grad()
    def _score_shard(self, command: Command, unit: int) -> None:
        shard = self.shard(command, unit)
        part = getattr(self.job.federation, shard.split)
        losses, correct = self.workspace.losses[shard.split], self.workspace.correct[shard.split]
        self._load_buffers()
        self.model.load(self.workspace.theta)
        self.model.module.eval()
        for start in range(shard.start, shard.stop, self.job.evaluate_batch):
            span = slice(start, min(start + self.job.evaluate_batch, shard.stop))
            inputs, labels = self.job.tensors.gather(part.indices[span])
            outputs = self.model(inputs)
            losses[span] = cross_entropy(outputs, labels, reduction="none")
            correct[span] = outputs.argmax(1) == labels

    def shard(self, command: Command, unit: int) -> Shard:
        """Return the shard of a unit of an evaluation."""
        return self._shards(command.splits)[unit]

    def _back(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
        """Return tensors in the CPU's memory."""
        if self._device == _CPU or not tensors:
            return tensors
        return {
            name: torch.empty(value.shape, dtype=value.dtype).copy_(value)
            for name, value in tensors.items()
        }

    def _task(self, command: Command, slot: int, device: torch.device | None = None) -> LocalTask:
        """Return a client's task with its tensors on a device, that of the job if left out."""
        device = device or self._device
        client = int(self.workspace.clients[slot])
        state, sent = without_sent(self.workspace.before.get(slot))
        buffers = self._buffers()
        return LocalTask(
            theta=self.workspace.theta.to(device),
            data=self.job.client_data(client, command.round),
            lr=command.lr,
            address=SeedAddress(self.job.seed, command.round, client),
            epochs=self.job.epochs,
            batch_size=self.job.batch_size,
            state=None if state is None else _moved(state, device),
            sent=_moved(sent, device),
            initial=self.workspace.initial.to(device),
            buffers=None if buffers is None else _moved(buffers, device),
            report_loss=command.report_loss,
            precision=self.job.precision,
        )

    def _buffers(self) -> dict[str, Tensor] | None:
        return self.workspace.buffers.get(self.workspace.broadcast_buffers)

    def _load_buffers(self) -> None:
        buffers = self._buffers()
        if buffers is not None:
            self.model.load_buffers(buffers)


def _moved(tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}
