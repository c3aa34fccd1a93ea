"""The state of a federation's run: the model, the method's state, its clients' last replies."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result
from torch import Tensor, nn

from fedcraft.config.settings import Settings
from fedcraft.engine.client_manager import CohortUpdates
from fedcraft.engine.server import LossesAt, Remote, Server, ServerStep, refuse_buffers
from fedcraft.errors import StateError
from fedcraft.flower.messages import keys
from fedcraft.flower.messages.arrays import WireFormat, open_array
from fedcraft.flower.server.clients import KnownClients
from fedcraft.flower.server.private_rounds import FederatedPrivacy
from fedcraft.flower.server.replies import AcceptedReply, UpdateMatrix
from fedcraft.methods import Method
from fedcraft.updates import ClientId, Layout

_NEEDS = {"losses": keys.LOSS, "steps": keys.STEPS}
_HISTORY = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


class RunState:
    """Everything that changes from round to round.

    ``record`` is the model x_t as Flower's arrays and ``broadcast`` is what clients train from: the
    same, or the look-ahead from it. Both are packed once per round. ``last`` holds, by client, the
    round of its last reply that counted. ``step`` and ``scores`` are the last step and the last
    evaluation.
    """

    def __init__(
        self,
        method: Method,
        record: ArrayRecord,
        settings: Settings,
        *,
        model: nn.Module | None,
        layout: Layout | None,
        weight_key: str | None,
        longest: float | None,
        private: FederatedPrivacy | None = None,
    ) -> None:
        objective, aggregator, optimizer = method.build()
        self.wire = WireFormat.of(record, model=model, layout=layout, group=settings.layers)
        self.server = Server(
            aggregator,
            optimizer,
            self.wire.flatten(record),
            self.wire.layout,
            settings,
            self._buffers(record),
        )
        needs = [_NEEDS[name] for name in sorted(aggregator.needs) if name in _NEEDS]
        self.private = self.server.private = private
        if private is not None:
            refuse_buffers(self.server.averaged)
        self.updates = UpdateMatrix(
            self.wire,
            weight_key=None if private else weight_key,  # data sizes are private
            needs=needs,
            longest=longest,
            check=private.check_reply if private else lambda metrics: None,
        )
        self.clients = KnownClients()
        self.others = {name: record[name] for name in record}
        self.record = self.broadcast = record
        self.initial = record if objective.personal else None
        self.run_key = secrets.token_hex(8)
        self.client_lr = method.client_lr
        self.last: dict[ClientId, int] = {}
        self.saved: list[dict[ClientId, int]] = []
        self.step: ServerStep | None = None
        self.scores: list[AcceptedReply] = []
        self.result = Result(arrays=record)

    def adopt(self, record: ArrayRecord) -> None:
        """Continue from a model that other code has changed, such as a wrapping strategy."""
        if record is not self.record:
            self.server.adopt(self.wire.flatten(record), self._buffers(record))
            self.record = record
            self.broadcast = self._ahead()

    def adopt_broadcast(self, record: ArrayRecord) -> None:
        """Let clients train from ``record``, which other code may have changed."""
        if self.server.ahead is None:
            self.adopt(record)
        elif record is not self.broadcast and record is not self.record:
            theta = self.wire.flatten(record) + self.server.ahead
            self.server.adopt(theta, self._buffers(record))
            self.record, self.broadcast = self.pack(theta), record

    def aggregate(
        self,
        round_number: int,
        trained: CohortUpdates,
        losses_at: LossesAt,
        remote: Remote | None = None,
    ) -> None:
        """Move the model; ``remote`` aggregates updates that stay with the clients."""
        index = round_number - 1
        self.step = self.server.step(trained, index, self.client_lr, losses_at, remote)
        self._pack()
        self.last.update({reply.client: round_number for reply in self.updates.accepted})

    @property
    def sent(self) -> Tensor:
        """The broadcast as a vector: rounded if its arrays have fewer digits than theta."""
        plain = self.wire.exact and self.broadcast is self.record
        return self.server.theta if plain else self.wire.flatten(self.broadcast)

    @property
    def output(self) -> ArrayRecord:
        """The model that is evaluated and saved: x_t, or the average of the iterates."""
        output = self.server.output
        return self.record if output is self.server.theta else self.pack(output)

    def pack(self, theta: Tensor) -> ArrayRecord:
        """Return a model in the form in which it is sent."""
        return self.wire.pack_model(theta, self.others, self.server.buffers or {})

    def snapshot(self) -> tuple[Any, ...]:
        """Return everything that a round changes, for :meth:`restore`."""
        return self.server.snapshot(), self.record, self.broadcast, dict(self.last)

    def restore(self, before: tuple[Any, ...]) -> None:
        """Undo a round that does not count."""
        server, self.record, self.broadcast, self.last = before
        self.server.restore(server)

    def still_needed(self, client: ClientId) -> list[int]:
        """Return the rounds whose state of a client this run, or a checkpoint of it, needs."""
        return sorted({last[client] for last in (self.last, *self.saved) if client in last})

    def note_saved(self, checkpoints: int) -> None:
        """Record a checkpoint; the run keeps ``checkpoints`` and may return to any of them."""
        self.saved = [dict(self.last), *self.saved][:checkpoints]

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs."""
        return {
            "server": self.server.state_dict(),
            "others": {name: open_array(self.others[name]) for name in self.wire.kept},
            "initial": None if self.initial is None else self.wire.flatten(self.initial),
            "run_key": self.run_key,
            "last": dict(self.last),
            "saved": self.saved,
            "named": self.clients.named,
            "names": self.clients.by_node,
            "history": {
                name: {
                    number: dict(metrics) for number, metrics in getattr(self.result, name).items()
                }
                for name in _HISTORY
            },
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
        self.clients.named = state.get("named", True)
        self.clients.by_node = dict(state.get("names", {}))
        for name in _HISTORY:
            history = state["history"][name].items()
            getattr(self.result, name).update({n: MetricRecord(dict(m)) for n, m in history})
        self._pack()

    def _pack(self) -> None:
        self.record = self.pack(self.server.theta)
        self.broadcast = self._ahead()

    def _ahead(self) -> ArrayRecord:
        return self.record if self.server.ahead is None else self.pack(self.server.start)

    def _buffers(self, record: ArrayRecord) -> dict[str, Tensor] | None:
        return self.wire.read_buffers(record, self.wire.buffers) or None
