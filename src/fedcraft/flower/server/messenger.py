"""Sends the server's messages to nodes and decides which replies count."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import WARNING
from types import MappingProxyType
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Tensor

from fedcraft.config.settings import Settings
from fedcraft.errors import FedcraftError, NonFiniteError
from fedcraft.flower.messages import keys
from fedcraft.flower.server.clients import NameTakenError
from fedcraft.flower.server.replies import RefusedReply, finite, read_metrics, reported_client
from fedcraft.flower.server.reply_stream import ReplyStream
from fedcraft.flower.server.run_state import RunState
from fedcraft.updates import ClientId, client_order

Accept = Callable[[int, ClientId, Message], None]
# With these Flower itself answers for a node or a reply that it has lost. All other errors come
# from a node that is online, but whose app has no answer.
LOST = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
_LONGEST_STEP = 3600.0
# Times the deadline: Flower counts a message's lifetime from its creation, the deadline starts when
# all messages are sent, and the last replies are pulled after it.
_LIFE = 2


class Messenger:
    """Sends a run's messages and sorts the replies into accepted and refused.

    ``asked``, ``refused`` and ``missing`` are about the last messages to train or evaluate, and
    ``objections`` say why nodes refused a stage of a secure round. ``seconds`` counts the time
    spent on replies, as opposed to waiting for them.
    """

    def __init__(
        self, state: RunState, settings: Settings, names: tuple[str, str], timeout: float | None
    ) -> None:
        self.state, self.settings = state, settings
        self.patience = math.inf if timeout is None else timeout
        self._arrays_name, self._config_name = names
        self._stream: ReplyStream | None = None
        self.asked: list[int] = []
        self._answered: set[int] = set()  # by the node, or by Flower in its place
        self._heard: set[int] = set()
        self.refused: list[RefusedReply] = []
        self.objections: dict[int, str] = {}
        self.seconds = 0.0
        self._trials_end: float | None = None
        self._silent: set[int] = set()

    @property
    def missing(self) -> list[ClientId]:
        """The clients that were asked last and have not answered, in order."""
        silent = [node for node in self.asked if node not in self._answered]
        return sorted(map(self.state.clients.client, silent), key=client_order)

    @property
    def life(self) -> float | None:
        """The seconds after which Flower may drop a message; None without a deadline."""
        return None if self.patience == math.inf else _LIFE * self.patience

    def common_config(self, round_number: int, lr: float) -> dict[str, Any]:
        """Return the settings that every message contains."""
        return {
            keys.ROUND: round_number,
            keys.RUN: self.state.run_key,
            keys.SEED: self.settings.seed,
            keys.LR: lr,
            keys.EPOCHS: self.settings.local_epochs,
            keys.BATCH: self.settings.batch_size,
        }

    def messages(
        self, kind: str, nodes: list[int], record: ArrayRecord, config: Mapping[str, Any]
    ) -> list[Message]:
        """Return one message per node; they share the arrays."""
        self._stream, self.asked, self.refused, self.objections = None, nodes, [], {}
        self._answered, self._heard = set(), set()
        self._trials_end, self._silent = None, set()
        beside = self.state.server.aggregator.sent if kind == MessageType.TRAIN else {}
        sent = {keys.SENT + name: self.state.pack(vector) for name, vector in beside.items()}
        return [self.message(node, kind, record, config, sent) for node in nodes]

    def message(
        self,
        node: int,
        kind: str,
        record: ArrayRecord | None,
        config: Mapping[str, Any],
        sent: Mapping[str, ArrayRecord] = MappingProxyType({}),
    ) -> Message:
        """Return a message to one node, with what the rule sends beside the model."""
        client = self.state.clients.client(node)
        last, needed = self.state.last.get(client, 0), self.state.still_needed(client)
        whole = ConfigRecord({**config, keys.LAST: last, keys.KEEP: needed})
        content = RecordDict({self._config_name: whole})
        if record is not None:
            content[self._arrays_name] = record
        if self.state.initial is not None and not last and kind != MessageType.QUERY:
            content[keys.INITIAL] = self.state.initial
        for name, vector in sent.items():
            content[name] = vector
        return Message(content, dst_node_id=node, message_type=kind, ttl=self.life)

    def send(self, grid: Grid, messages: Iterable[Message]) -> ReplyStream:
        """Send messages and return the stream of their replies, which ends with the deadline."""
        size = self.state.wire.bytes
        self._stream = ReplyStream(grid, messages, timeout=self.patience, reply_bytes=size)
        return self._stream

    def receive(self, replies: Iterable[Message], accept: Accept) -> None:
        """Pass every good reply to ``accept``, one at a time; record why others are refused.

        A reply under another node's name waits until all others are in: that node may have been
        restarted, and its predecessor is silent.
        """
        claims: list[tuple[Message, int]] = []
        for reply in replies:
            started = time.perf_counter()
            try:
                self._receive(reply, accept)
            except NameTakenError as error:
                claims.append((reply, error.holder))
            self.seconds += time.perf_counter() - started
        for reply, holder in claims:
            if holder in self.asked and holder not in self._heard:
                self.state.clients.release(holder)
            try:
                self._receive(reply, accept)
            except NameTakenError as error:
                self.refuse(self._sender(reply), None, "malformed", str(error))

    def _sender(self, reply: Message) -> int:
        stream = self._stream
        return reply.metadata.src_node_id if stream is None else stream.sender(reply)

    def _receive(self, reply: Message, accept: Accept) -> None:
        node, clients = self._sender(reply), self.state.clients
        self._answered.add(node)
        client = clients.client(node) if clients.knows(node) else None
        lost = reply.has_error() and reply.error.code in LOST
        if not lost:
            self._heard.add(node)
        if reply.has_error():
            kind = "unavailable" if lost else "error"
            self.refuse(node, client, kind, reply.error.reason or "no reason given")
            return
        try:
            client = clients.checked(node, reported_client(read_metrics(reply.content)[1]))
            accept(node, client, reply)
            clients.enter(node, client)  # a refused reply changes nothing
        except NameTakenError:
            raise
        except FedcraftError as error:
            kind = "nonfinite" if isinstance(error, NonFiniteError) else "malformed"
            self.refuse(node, client, kind, str(error))

    def refuse(self, node: int, client: ClientId | None, kind: str, reason: str) -> None:
        """Record and log a reply that does not count."""
        self.refused.append(RefusedReply(node, client, kind, reason))
        shown = "unknown" if client is None else client
        log(WARNING, "Reply of node %d (client %s) refused, %s: %s", node, shown, kind, reason)

    def losses_at(self, grid: Grid, theta: Tensor, clients: Sequence[ClientId]) -> list[float]:
        """Ask clients for their loss at a trial point of a line search; NaN if none comes.

        All trials of a step share one deadline, and a node that missed one is not asked again.
        """
        now = time.monotonic()
        self._trials_end = self._trials_end or now + min(self.patience, _LONGEST_STEP)
        node_of = {self.state.clients.client(node): node for node in self.asked}
        record, config = self.state.pack(theta), self.common_config(0, self.state.client_lr)
        messages = [
            self.message(node, f"{MessageType.QUERY}.loss", record, config)
            for client in clients
            if (node := node_of[client]) not in self._silent
        ]
        stream = ReplyStream(grid, messages, timeout=max(self._trials_end - now, 0.0))
        found = {stream.sender(reply): _loss_of(reply) for reply in stream}
        self._silent.update(stream.missing)
        return [found.get(node_of[client], math.nan) for client in clients]


def _loss_of(reply: Message) -> float:
    try:
        return math.nan if reply.has_error() else finite(read_metrics(reply.content)[1], keys.LOSS)
    except FedcraftError as error:
        log(WARNING, "Loss of node %d could not be read: %s", reply.metadata.src_node_id, error)
        return math.nan
