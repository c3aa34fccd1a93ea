"""What a federation's server knows between rounds: the model, the method's state, its clients."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result
from torch import Tensor, nn

from fedcraft.engine.server import LossesAt, Server, ServerStep
from fedcraft.errors import StateError
from fedcraft.flower import keys
from fedcraft.flower.arrays import Wire, open_array
from fedcraft.flower.intake import Intake
from fedcraft.flower.roster import Roster
from fedcraft.methods import Method
from fedcraft.updates import BufferPolicy, ClientId, Grouping, Layout

__all__ = ["Session"]

_NEEDS = {"losses": keys.LOSS, "steps": keys.STEPS}
_HISTORY = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


@dataclass(frozen=True)
class Snapshot:
    """What a session was before a round."""

    server: tuple[Any, ...]
    record: ArrayRecord
    last: dict[ClientId, int]


class Session:
    """One run: theta, the method's memory, and which reply of each client was the last to count.

    ``record`` is the model as it is sent, made once per round whatever the number of clients.
    """

    def __init__(
        self,
        method: Method,
        record: ArrayRecord,
        *,
        model: nn.Module | None,
        layout: Layout | None,
        group: Grouping,
        buffers: BufferPolicy,
        weight_key: str | None,
        longest: float | None,
    ) -> None:
        objective, aggregator, optimizer = method.build()
        self.wire = Wire.of(record, model=model, layout=layout, group=group)
        self.server = Server(
            aggregator,
            optimizer,
            self.wire.flatten(record),
            self.wire.layout,
            buffers=self.wire.read_buffers(record) or None,
            buffer_policy=buffers,
        )
        needs = [_NEEDS[name] for name in sorted(aggregator.needs) if name in _NEEDS]
        self.intake = Intake(weight_key=weight_key, needs=needs, longest=longest)
        self.roster = Roster()
        self.others = {name: record[name] for name in record}
        self.record = record
        self.initial = record if objective.personal else None
        self.run_key = secrets.token_hex(8)
        self.last: dict[ClientId, int] = {}
        self.saved: list[dict[ClientId, int]] = []
        self.result = Result(arrays=record)

    def adopt(self, record: ArrayRecord) -> None:
        """Go on from a model that somebody else has changed, such as a wrapping strategy."""
        if record is not self.record:
            self.server.theta = self.wire.flatten(record)
            self.server.buffers = self.wire.read_buffers(record) or None
            self.record = record

    def step(self, client_lr: float, losses_at: LossesAt) -> ServerStep:
        """Aggregate what came in and move the model."""
        done = self.server.step(self.intake.trained(), client_lr, losses_at)
        self.record = self.pack(self.server.theta)
        return done

    @property
    def sent(self) -> Tensor:
        """The model as clients read it: rounded, if its arrays have fewer digits than theta."""
        return self.server.theta if self.wire.exact else self.wire.flatten(self.record)

    def pack(self, theta: Tensor) -> ArrayRecord:
        """Return a model as it is sent."""
        return self.wire.record(theta, self.others, self.server.buffers or {})

    @property
    def output(self) -> ArrayRecord:
        """The model that is evaluated: theta, or the average of the iterates (AFL)."""
        same = self.server.output is self.server.theta
        return self.record if same else self.pack(self.server.output)

    def snapshot(self) -> Snapshot:
        """Return what a round changes, for :meth:`restore`."""
        return Snapshot(self.server.snapshot(), self.record, dict(self.last))

    def restore(self, before: Snapshot) -> None:
        """Undo a round that does not count."""
        self.server.restore(before.server)
        self.record, self.last = before.record, before.last

    def count(self, round_number: int) -> None:
        """Note that the replies that came in counted."""
        self.last.update({reply.client: round_number for reply in self.intake.accepted})

    def still_needed(self, client: ClientId) -> list[int]:
        """Return the rounds whose state of a client this run, or a checkpoint of it, builds on."""
        return sorted({last[client] for last in (self.last, *self.saved) if client in last})

    def note_saved(self, checkpoints: int) -> None:
        """Note a checkpoint; the server keeps so many, and could go back to any of them."""
        self.saved = [dict(self.last), *self.saved][:checkpoints]

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs."""
        kept = {name: array for name, array in self.others.items() if self.wire.is_kept(name)}
        return {
            "server": self.server.state_dict(),
            "others": {name: open_array(array) for name, array in kept.items()},
            "initial": None if self.initial is None else self.wire.flatten(self.initial),
            "run_key": self.run_key,
            "last": dict(self.last),
            "saved": self.saved,
            "named": self.roster.named,
            "names": self.roster.names,
            "history": {name: _plain(getattr(self.result, name)) for name in _HISTORY},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        found, expected = len(state["server"]["theta"]), self.wire.layout.dimension
        if found != expected:
            raise StateError(
                f"run_dir: its checkpoint has {found} coordinates, initial_arrays have {expected}; "
                "it belongs to another model"
            )
        self.server.load_state_dict(state["server"])
        self.others |= {name: Array(value) for name, value in state["others"].items()}
        self.initial = None if state["initial"] is None else self.pack(state["initial"])
        self.run_key = state["run_key"]
        self.last = dict(state["last"])
        self.saved = [dict(self.last), *state.get("saved", [])]
        self.roster.named = state.get("named", True)
        self.roster.earlier = dict(state.get("names", {}))
        for name in _HISTORY:
            getattr(self.result, name).update(_records(state["history"][name]))
        self.record = self.result.arrays = self.pack(self.server.theta)


def _plain(history: Mapping[int, MetricRecord]) -> dict[int, dict[str, Any]]:
    return {number: dict(record) for number, record in history.items()}


def _records(history: Mapping[int, Mapping[str, Any]]) -> dict[int, MetricRecord]:
    return {number: MetricRecord(dict(metrics)) for number, metrics in history.items()}
