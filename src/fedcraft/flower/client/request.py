"""One request to one client: reads the message, trains or evaluates, and makes the reply."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from torch import Tensor, nn

from fedcraft.data import Client
from fedcraft.data.batches import tensors_of
from fedcraft.errors import InputError
from fedcraft.flower.client.client_state import ContextStates, DirectoryStates, StatesByRound
from fedcraft.flower.messages import keys
from fedcraft.flower.messages.arrays import WireFormat
from fedcraft.local import ClientData, LocalObjective, LocalResult, LocalTask, SeedAddress
from fedcraft.local.fast_sgd.model import scratch_model
from fedcraft.local.objective import unprefixed

ClientSplits = Client | Mapping[str, tuple[Tensor, Tensor]]


class ClientRequest:
    """A message from the server with the model, data and state needed to answer it.

    ``defaults`` are settings that the server may leave out.
    """

    def __init__(
        self,
        content: RecordDict,
        context: Context,
        *,
        client: int,
        model: nn.Module,
        data: ClientSplits,
        objective: LocalObjective,
        state_dir: str | Path | None,
        defaults: Mapping[str, Any],
    ) -> None:
        self.client, self.data, self.objective = client, data, objective
        self.config = dict(defaults)
        for record in content.config_records.values():
            self.config |= record
        self.broadcast = _broadcast(content)
        self.initial = content.array_records.get(keys.INITIAL)
        self.sent = unprefixed(keys.SENT, content.array_records)
        self.model = scratch_model(model)
        self.wire = WireFormat.of(self.broadcast, model=self.model.module)
        self.states: StatesByRound = ContextStates(context)
        directory = state_dir or context.node_config.get("state-dir")
        if directory is not None:
            run = str(self.config.get(keys.RUN, context.run_id))
            self.states = DirectoryStates(str(directory), run, client)
        self.last = int(self.config.get(keys.LAST, max(self.states, default=0)))

    def train(self) -> RecordDict:
        """Train, keep the new client state, and return the reply."""
        number = int(self.config.get(keys.ROUND, self.last + 1))
        task = self._task(number - 1)
        row = torch.empty_like(task.theta)
        result = self.objective.train(self.model, task, row)
        if result.state is not None:
            needed = self.config.get(keys.KEEP, [self.last])
            self.states.keep(number, result.state, needed=map(int, needed))
        lost = result.state is not None and self.last > 0 and task.state is None
        name, arrays = self._arrays(task.theta, row, result)
        return RecordDict({name: arrays, keys.METRICS: self._metrics(result, lost)})

    def evaluate(self) -> RecordDict:
        """Return accuracy and loss of the model that this client would use."""
        task = self._task(int(self.config.get(keys.ROUND, self.last)))
        self._load(self.objective.personal_vector(self.model, task))
        metrics: dict[str, int | float] = {keys.CLIENT: self.client}
        for split in str(self.config.get(keys.SPLITS, "test")).split(","):
            metrics |= self._score(split)
        return RecordDict({keys.METRICS: MetricRecord(dict(metrics))})

    def loss(self) -> RecordDict:
        """Return the mean training loss at the broadcast model: one trial of a line search."""
        self._load(self.wire.flatten(self.broadcast))
        value = self.objective.loss_at(self.model, self.model.vector.clone(), self._split("train"))
        metrics = MetricRecord({keys.CLIENT: self.client, keys.LOSS: value})
        return RecordDict({keys.METRICS: metrics})

    def _task(self, round_index: int) -> LocalTask:
        return LocalTask(
            theta=self.wire.flatten(self.broadcast),
            data=self._split("train"),
            lr=float(self.config[keys.LR]),
            address=SeedAddress(int(self.config[keys.SEED]), round_index, self.client),
            epochs=int(self.config[keys.EPOCHS]),
            batch_size=int(self.config[keys.BATCH]),
            state=self.states.get(self.last),
            initial=None if self.initial is None else self.wire.flatten(self.initial),
            buffers=self._buffers(),
            report_loss=bool(self.config.get(keys.REPORT_LOSS, False)),
            sent={name: self.wire.flatten(record) for name, record in self.sent.items()},
        )

    def _arrays(self, theta: Tensor, row: Tensor, result: LocalResult) -> tuple[str, ArrayRecord]:
        trained = result.buffers or {}
        own = {name: trained[name] for name in self.wire.buffers}
        # A row has no names, so both sides must agree on the order of its coordinates.
        same_order = self.config.get(keys.LAYOUT, self.wire.digest) == self.wire.digest
        if self.config.get(keys.REPLY) == keys.UPDATE and same_order:
            return keys.UPDATE, self.wire.pack_update(row, own)
        return keys.ARRAYS, self.wire.pack_model(theta - row, self.broadcast, own)

    def _metrics(self, result: LocalResult, lost: bool) -> MetricRecord:
        metrics: dict[str, int | float] = {
            keys.EXAMPLES: result.samples,
            keys.CLIENT: self.client,
            keys.STEPS: result.steps,
            keys.STATE_LOST: int(lost),
        }
        if math.isfinite(result.train_loss):
            metrics[keys.LOCAL_LOSS] = result.train_loss
        if result.loss is not None:
            metrics[keys.LOSS] = result.loss
        return MetricRecord(dict(metrics))

    def _score(self, split: str) -> dict[str, int | float]:
        data = self._split(split)
        total, correct = self.objective.score(self.model, data)
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
            raise InputError(f"data_fn: expected a split {split!r}, found {sorted(self.data)}")
        return ClientData.of(*self.data[split])

    def _load(self, vector: Tensor) -> None:
        buffers = self._buffers()
        if buffers is not None:
            self.model.load_buffers(buffers)
        self.model.load(vector)
        self.model.module.eval()

    def _buffers(self) -> dict[str, Tensor] | None:
        """Return the broadcast's buffers, or those of the model where the broadcast has none."""
        own = dict(self.model.module.named_buffers())
        sent = self.wire.read_buffers(self.broadcast, [n for n in own if n in self.broadcast])
        return own | sent if sent else None


def _broadcast(content: RecordDict) -> ArrayRecord:
    beside = (keys.INITIAL, keys.SENT)
    records = content.array_records.items()
    found = [record for name, record in records if not name.startswith(beside)]
    if len(found) != 1:
        raise InputError(f"message: expected one ArrayRecord with the model, found {len(found)}")
    return found[0]
