"""The server's mail: who is asked, what goes out, what comes back and counts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Tensor

from fedcraft.engine.sampling import draw_clients
from fedcraft.engine.settings import Settings
from fedcraft.errors import FedcraftError, InputError, NonFiniteError
from fedcraft.flower import keys
from fedcraft.flower.exchange import Exchange
from fedcraft.flower.intake import Metrics, Refusal, metrics_of
from fedcraft.flower.roster import client_order, wait_for_nodes
from fedcraft.flower.session import Session
from fedcraft.updates import ClientId

__all__ = ["Post"]

Take = Callable[[int, ClientId, Message], None]
# The node is there, but its app has no answer; every other error means that it may not be there.
_APP_FAILED = (
    ErrorCode.UNKNOWN,
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION,
)


class Post:
    """One run's conversation with its nodes.

    ``refusals`` and ``missing`` are about the last letters; ``seconds`` counts the time spent on
    replies, as opposed to waiting for them.
    """

    def __init__(
        self, session: Session, settings: Settings, names: tuple[str, str], timeout: float | None
    ) -> None:
        self.session, self.settings, self.timeout = session, settings, timeout
        self._arrays_name, self._config_name = names
        self._exchange: Exchange | None = None
        self._asked: list[int] = []
        self._answered: set[int] = set()
        self.refusals: list[Refusal] = []
        self.seconds = 0.0

    @property
    def missing(self) -> list[ClientId]:
        """The clients that were asked last and have not answered, in order."""
        silent = [node for node in self._asked if node not in self._answered]
        return sorted(map(self.session.roster.client, silent), key=client_order)

    def common(self, round_number: int, rate: float) -> dict[str, Any]:
        """Return what every letter says."""
        return {
            keys.ROUND: round_number,
            keys.RUN: self.session.run_key,
            keys.SEED: self.settings.seed,
            keys.LR: rate,
            keys.EPOCHS: self.settings.local_epochs,
            keys.BATCH: self.settings.batch_size,
        }

    def choose(self, grid: Grid, round_index: int, count: Callable[[int], int]) -> list[int]:
        """Draw nodes by their clients' numbers, as the simulator would, in that order.

        ``count`` says how many of n nodes. Nodes that never spoke are asked for their client's
        number if it matters: when not all take part, and when clients have a past to go on from.
        """
        nodes = wait_for_nodes(grid, count(0))
        chosen = min(count(len(nodes)), len(nodes))
        if chosen < len(nodes) or (self.session.initial is not None and self.session.last):
            self._learn_names(grid, nodes)
        ordered = self.session.roster.ordered(nodes)
        settings = replace(self.settings, clients_per_round=chosen)
        drawn = draw_clients(settings, len(nodes), round_index)
        return [ordered[place] for place in drawn.present.tolist()]

    def letters(
        self, kind: str, nodes: list[int], record: ArrayRecord, asked: Mapping[str, Any]
    ) -> list[Message]:
        """Return one message per node; the arrays are shared between them, not copied."""
        self._exchange, self._asked, self._answered, self.refusals = None, nodes, set(), []
        return [self._letter(node, kind, record, asked) for node in nodes]

    def exchange(self, grid: Grid, letters: Iterable[Message]) -> Exchange:
        """Send letters; iterate over the result to read the replies until the deadline."""
        timeout = math.inf if self.timeout is None else self.timeout
        size = self.session.wire.bytes
        self._exchange = Exchange(grid, letters, timeout=timeout, reply_bytes=size)
        return self._exchange

    def take(self, replies: Iterable[Message], take: Take) -> None:
        """Hand every good reply to ``take``, one at a time; note the others with their reasons."""
        for reply in replies:
            started = time.perf_counter()
            self._take_one(reply, take)
            self.seconds += time.perf_counter() - started

    def losses_at(
        self, grid: Grid, theta: Tensor, clients: Sequence[ClientId], rate: float
    ) -> list[float]:
        """Ask clients for their loss at a trial point; NaN from those who do not answer."""
        node_of = {self.session.roster.client(node): node for node in self._asked}
        record, asked = self.session.pack(theta), self.common(0, rate)
        kind = f"{MessageType.QUERY}.loss"
        exchange = self._ask(grid, [(node_of[c], kind, record, asked) for c in clients])
        found = {
            exchange.sender(reply): metrics_of(reply.content).get(keys.LOSS, math.nan)
            for reply in exchange
            if not reply.has_error()
        }
        return [float(found.get(node_of[client], math.nan)) for client in clients]

    def _learn_names(self, grid: Grid, nodes: Sequence[int]) -> None:
        """Ask who is new which client it is; apps that cannot say are known by their node."""
        roster = self.session.roster
        new = [node for node in nodes if not roster.knows(node)]
        exchange = self._ask(grid, [(node, MessageType.QUERY, None, {}) for node in new])
        for reply in exchange:
            if not reply.has_error():
                named = _client_of(metrics_of(reply.content))
            elif reply.error.code in _APP_FAILED:
                named = None
            else:
                continue
            roster.enter(exchange.sender(reply), named, nodes)

    def _ask(
        self, grid: Grid, questions: list[tuple[int, str, ArrayRecord | None, Mapping[str, Any]]]
    ) -> Exchange:
        timeout = math.inf if self.timeout is None else self.timeout
        return Exchange(grid, [self._letter(*q) for q in questions], timeout=timeout)

    def _letter(
        self, node: int, kind: str, record: ArrayRecord | None, asked: Mapping[str, Any]
    ) -> Message:
        client = self.session.roster.client(node)
        last, oldest = self.session.last.get(client, 0), self.session.oldest.get(client, 0)
        config = ConfigRecord({**asked, keys.LAST: last, keys.OLDEST: oldest})
        content = RecordDict({self._config_name: config})
        if record is not None:
            content[self._arrays_name] = record
        if self.session.initial is not None and not last and kind != MessageType.QUERY:
            content[keys.INITIAL] = self.session.initial
        return Message(content, dst_node_id=node, message_type=kind, ttl=self.timeout)

    def _take_one(self, reply: Message, take: Take) -> None:
        node = self._exchange.sender(reply) if self._exchange else reply.metadata.src_node_id
        roster = self.session.roster
        self._answered.add(node)
        client = roster.client(node) if roster.knows(node) else None
        if reply.has_error():
            kind = "error" if reply.error.code in _APP_FAILED else "unavailable"
            self._refuse(Refusal(node, client, kind, reply.error.reason or "no reason given"))
            return
        try:
            client = roster.enter(node, _client_of(metrics_of(reply.content)), self._asked)
            take(node, client, reply)
        except NonFiniteError as error:
            self._refuse(Refusal(node, client, "nonfinite", str(error)))
        except FedcraftError as error:
            self._refuse(Refusal(node, client, "malformed", str(error)))

    def _refuse(self, refused: Refusal) -> None:
        self.refusals.append(refused)
        who = "unknown" if refused.client is None else refused.client
        text = "Reply of node %d (client %s) refused, %s: %s"
        log(WARNING, text, refused.node, who, refused.kind, refused.reason)


def _client_of(metrics: Metrics) -> ClientId | None:
    """Return the number a client calls itself by; None if it has none."""
    found = metrics.get(keys.CLIENT)
    if found is None or (isinstance(found, int) and found >= 0):
        return found
    raise InputError(f"metric {keys.CLIENT!r}: expected a whole number >= 0, found {found!r}")
