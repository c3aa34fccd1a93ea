"""The work of one client, or one shard of an evaluation: the same in every executor."""

from __future__ import annotations

import copy
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedcraft.engine.group import Group, group_of
from fedcraft.engine.job import SPLITS, Command, Desk, Job, Shard, shards
from fedcraft.engine.scratch import scratch_model
from fedcraft.errors import ConfigError
from fedcraft.local import ClientData, LocalResult, LocalTask, SeedAddress

__all__ = ["Bench"]


class Bench:
    """One model, reset in place for whoever comes next; reads and writes the desk alone."""

    def __init__(self, job: Job, desk: Desk) -> None:
        self.job, self.desk = job, desk
        # Later only the root is asked for its mode: a part handed over in another must not stay so.
        self.model = scratch_model(copy.deepcopy(job.module).train())
        self._group: Group | None = None
        self._shards: dict[tuple[str, ...], list[Shard]] = {}

    def do(self, command: Command, unit: int) -> None:
        """Do one unit of the command: a slot, or the number of a shard."""
        if command.kind == "train":
            self._train(command, unit)
        elif command.kind == "group":
            self._train_group(command, unit)
        elif command.kind == "loss":
            self._loss(command, unit)
        elif command.kind == "personal":
            self._personal(command, unit)
        else:
            self._shard(self._plan(command.splits)[unit])

    def subject(self, command: Command, unit: int) -> int | None:
        """Return the client a unit is about, for messages."""
        if command.kind in ("evaluate", "group"):
            return None
        return int(self.desk.clients[unit])

    def _train(self, command: Command, slot: int) -> None:
        started = perf_counter()
        task = self._task(command, slot)
        result = self.job.objective.train(self.model, task, self.desk.updates[slot])
        self._report(slot, result, perf_counter() - started)

    def _train_group(self, command: Command, unit: int) -> None:
        started = perf_counter()
        seated, first = int(self.desk.seats[-1]), unit * command.group
        slots = self.desk.seats[first : min(first + command.group, seated)].tolist()
        tasks = [self._task(command, slot) for slot in slots]
        if self._group is None:
            self._group = group_of(self.job.objective, self.job.module, self.job.device)
        if self._group is None:
            raise ConfigError("executor: these clients cannot be trained side by side")
        results = self._group.train(tasks, [self.desk.updates[slot] for slot in slots])
        for slot, task, result in zip(slots, tasks, results, strict=True):
            if command.report_loss:
                before = self.job.objective.loss_at(self.model, task.theta, task.data)
                result = replace(result, loss=before)
            self._report(slot, result, (perf_counter() - started) / len(slots))

    def _report(self, slot: int, result: LocalResult, seconds: float) -> None:
        desk = self.desk
        desk.after.put(slot, result.state)
        desk.buffers.put(slot, result.buffers)
        loss = float("nan") if result.loss is None else result.loss
        # A sum is finite unless the row holds NaN or Inf, or is about to overflow anyway.
        total = float(desk.updates[slot].sum())
        numbers = (result.samples, result.steps, result.train_loss, loss, total)
        desk.report[slot] = (*numbers, seconds)

    def _loss(self, command: Command, slot: int) -> None:
        data = self._data(command, slot)
        self._load_buffers()
        self.desk.report[slot, 3] = self.job.objective.loss_at(self.model, self.desk.theta, data)

    def _personal(self, command: Command, slot: int) -> None:
        task = self._task(command, slot)
        self._load_buffers()
        self.model.load(self.job.objective.personal_vector(self.model, task))
        self.model.module.eval()
        for split in command.splits:
            rows = self.job.federation.rows(int(self.desk.clients[slot]), split)
            data = ClientData(self.job.tensors, rows)
            self.desk.scores[slot, SPLITS.index(split)] = self._score(data)

    @torch.no_grad()
    def _score(self, data: ClientData) -> tuple[float, float]:
        """Return (sum of losses, number of correct answers) over a client's samples."""
        total, correct = 0.0, 0
        for inputs, labels in data.parts():
            outputs = self.model(inputs)
            total += float(self.job.objective.loss(outputs, labels)) * len(labels)
            correct += int((outputs.argmax(1) == labels).sum())
        return total, float(correct)

    @torch.no_grad()
    def _shard(self, shard: Shard) -> None:
        part = getattr(self.job.federation, shard.split)
        losses, correct = self.desk.losses[shard.split], self.desk.correct[shard.split]
        self._load_buffers()
        self.model.load(self.desk.theta)
        self.model.module.eval()
        for start in range(shard.start, shard.stop, self.job.evaluate_batch):
            span = slice(start, min(start + self.job.evaluate_batch, shard.stop))
            inputs, labels = self.job.tensors.gather(part.indices[span])
            outputs = self.model(inputs)
            losses[span] = cross_entropy(outputs, labels, reduction="none")
            correct[span] = outputs.argmax(1) == labels

    def _plan(self, splits: tuple[str, ...]) -> list[Shard]:
        if splits not in self._shards:
            self._shards[splits] = shards(self.job, splits)
        return self._shards[splits]

    def _task(self, command: Command, slot: int) -> LocalTask:
        client = int(self.desk.clients[slot])
        return LocalTask(
            theta=self.desk.theta,
            data=self._data(command, slot),
            lr=command.lr,
            address=SeedAddress(self.job.seed, command.round, client),
            epochs=self.job.epochs,
            batch_size=self.job.batch_size,
            state=self.desk.before.get(slot),
            initial=self.desk.initial,
            buffers=self._buffers(),
            report_loss=command.report_loss,
        )

    def _data(self, command: Command, slot: int) -> ClientData:
        return self.job.client_data(int(self.desk.clients[slot]), command.round)

    def _buffers(self) -> dict[str, Tensor] | None:
        return self.desk.buffers.get(self.desk.broadcast_buffers)

    def _load_buffers(self) -> None:
        buffers = self._buffers()
        if buffers is not None:
            self.model.load_buffers(buffers)
