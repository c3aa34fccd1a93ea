"""One message to one client: what is asked, what the client has, what it answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from torch import Tensor, nn

from fedcraft.data import Client
from fedcraft.data.batches import tensors_of
from fedcraft.engine.scratch import scratch_model
from fedcraft.errors import InputError
from fedcraft.flower import keys
from fedcraft.flower.arrays import Wire
from fedcraft.flower.memory import ContextMemory, DirectoryMemory, Memory
from fedcraft.local import ClientData, LocalObjective, LocalResult, LocalTask, SeedAddress

__all__ = ["ClientSplits", "Recipe", "Visit"]

ClientSplits = Client | Mapping[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Recipe:
    """What all visits of a client app have in common."""

    model_fn: Callable[[Context], nn.Module]
    data_fn: Callable[[Context], ClientSplits]
    objective_fn: Callable[[Context], LocalObjective]
    client_id_fn: Callable[[Context], int]
    state_dir: str | Path | None
    defaults: Mapping[str, Any]


class Visit:
    """Builds what the message needs and answers it."""

    def __init__(self, recipe: Recipe, content: RecordDict, context: Context) -> None:
        self.client = recipe.client_id_fn(context)
        self.asked = {**recipe.defaults, **_config(content)}
        self.broadcast = _broadcast(content)
        self.first = content.array_records.get(keys.INITIAL)
        self.model = scratch_model(recipe.model_fn(context))
        self.wire = Wire.of(self.broadcast, model=self.model.module)
        self.objective = recipe.objective_fn(context)
        self.data = recipe.data_fn(context)
        self.memory = self._memory(recipe, context)
        self.last = int(self.asked.get(keys.LAST, max(self.memory.rounds(), default=0)))

    def train(self) -> RecordDict:
        """Train, keep what is to be kept, and return the reply."""
        number = int(self.asked.get(keys.ROUND, self.last + 1))
        task = self._task(number - 1)
        row = torch.empty_like(task.theta)
        result = self.objective.train(self.model, task, row)
        if result.state is not None:
            needed = self.asked.get(keys.KEEP, [self.last])
            self.memory.keep(number, result.state, needed=map(int, needed))
        lost = result.state is not None and self.last > 0 and task.state is None
        name, arrays = self._arrays(task.theta, row, result)
        return RecordDict({name: arrays, keys.METRICS: self._report(result, lost)})

    def evaluate(self) -> RecordDict:
        """Return accuracy and loss of the model that this client would use."""
        task = self._task(int(self.asked.get(keys.ROUND, self.last)))
        vector = self.objective.personal_vector(self.model, task)
        self._load(vector)
        report: dict[str, int | float] = {keys.CLIENT: self.client}
        for split in str(self.asked.get(keys.SPLITS, "test")).split(","):
            report |= self._score(split)
        return RecordDict({keys.METRICS: MetricRecord(dict(report))})

    def loss(self) -> RecordDict:
        """Return the mean training loss of the model that was sent: one trial of a line search."""
        self._load(self.wire.flatten(self.broadcast))
        value = self.objective.loss_at(self.model, self.model.vector.clone(), self._split("train"))
        known = MetricRecord({keys.CLIENT: self.client, keys.LOSS: value})
        return RecordDict({keys.METRICS: known})

    def _task(self, round_index: int) -> LocalTask:
        return LocalTask(
            theta=self.wire.flatten(self.broadcast),
            data=self._split("train"),
            lr=float(self.asked[keys.LR]),
            address=SeedAddress(int(self.asked[keys.SEED]), round_index, self.client),
            epochs=int(self.asked[keys.EPOCHS]),
            batch_size=int(self.asked[keys.BATCH]),
            state=self.memory.at(self.last),
            initial=None if self.first is None else self.wire.flatten(self.first),
            buffers=self._buffers(),
            report_loss=bool(self.asked.get(keys.REPORT_LOSS, False)),
        )

    def _arrays(self, theta: Tensor, row: Tensor, result: LocalResult) -> tuple[str, ArrayRecord]:
        trained = result.buffers or {}
        own = {name: trained[name] for name in self.wire.buffers}
        # A row says nothing of its order: without the same one on both sides, names have to.
        same_order = self.asked.get(keys.LAYOUT, self.wire.digest) == self.wire.digest
        if self.asked.get(keys.REPLY) == keys.UPDATE and same_order:
            return keys.UPDATE, self.wire.update_record(row, own)
        return keys.ARRAYS, self.wire.record(theta - row, self.broadcast, own)

    def _report(self, result: LocalResult, lost: bool) -> MetricRecord:
        report: dict[str, int | float] = {
            keys.EXAMPLES: result.samples,
            keys.CLIENT: self.client,
            keys.STEPS: result.steps,
            keys.STATE_LOST: int(lost),
        }
        if math.isfinite(result.train_loss):
            report[keys.LOCAL_LOSS] = result.train_loss
        if result.loss is not None:
            report[keys.LOSS] = result.loss
        return MetricRecord(dict(report))

    @torch.no_grad()
    def _score(self, split: str) -> dict[str, int | float]:
        data, total, correct = self._split(split), 0.0, 0
        for inputs, labels in data.parts():
            outputs = self.model(inputs)
            total += float(self.objective.loss(outputs, labels)) * len(labels)
            correct += int((outputs.argmax(1) == labels).sum())
        count, prefix = max(len(data), 1), "" if split == "test" else f"{split}-"
        return {
            prefix + keys.EXAMPLES: len(data),
            prefix + keys.ACCURACY: correct / count,
            prefix + keys.TEST_LOSS: total / count,
        }

    def _split(self, split: str) -> ClientData:
        if isinstance(self.data, Client):
            return ClientData(tensors_of(self.data.dataset, 0.0), getattr(self.data, split))
        if split not in self.data:
            raise InputError(f"data_fn: expected a part {split!r}, found {sorted(self.data)}")
        return ClientData.of(*self.data[split])

    def _load(self, vector: Tensor) -> None:
        buffers = self._buffers()
        if buffers is not None:
            self.model.load_buffers(buffers)
        self.model.load(vector)
        self.model.module.eval()

    def _buffers(self) -> dict[str, Tensor] | None:
        """Those of the broadcast, and the model's own where it has none (non-persistent ones)."""
        own = dict(self.model.module.named_buffers())
        sent = {n: self.wire.view(self.broadcast, n).copy() for n in own if n in self.broadcast}
        return own | {name: torch.from_numpy(v) for name, v in sent.items()} if sent else None

    def _memory(self, recipe: Recipe, context: Context) -> Memory:
        directory = recipe.state_dir or context.node_config.get("state-dir")
        if directory is None:
            return ContextMemory(context)
        run = str(self.asked.get(keys.RUN, context.run_id))
        return DirectoryMemory(str(directory), run, self.client)


def _config(content: RecordDict) -> dict[str, Any]:
    records: list[ConfigRecord] = list(content.config_records.values())
    return {name: value for record in records for name, value in record.items()}


def _broadcast(content: RecordDict) -> ArrayRecord:
    found = [record for name, record in content.array_records.items() if name != keys.INITIAL]
    if len(found) != 1:
        raise InputError(f"message: expected one ArrayRecord with the model, found {len(found)}")
    return found[0]
