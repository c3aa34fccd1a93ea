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
from fedcraft.flower.intake import Refusal, finite, metrics_of
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


_NAME_SECONDS = 30.0
_ASK_AGAIN = 10  # times as long as it was waited for
_LONGEST_STEP = 3600.0
# Times the deadline: Flower counts a letter's life from when it was written, we from when all are
# sent, and the last replies are pulled after the deadline.
_LIFE = 2


class _Trials:
    """The questions of one step's line search: their deadline, and who did not answer one."""

    def __init__(self, patience: float) -> None:
        self._end: float | None = None
        self._patience = min(patience, _LONGEST_STEP)
        self.silent: set[int] = set()

    def seconds_left(self) -> float:
        """Return what is left of the time that began with the first question."""
        now = time.monotonic()
        self._end = self._end or now + self._patience
        return max(self._end - now, 0.0)


class Post:
    """One run's conversation with its nodes.

    ``refusals`` and ``missing`` are about the last letters; ``seconds`` counts the time spent on
    replies, as opposed to waiting for them. ``exact`` draws by the clients' numbers from the first
    round on, whatever it takes to learn them.
    """

    def __init__(
        self,
        session: Session,
        settings: Settings,
        names: tuple[str, str],
        timeout: float | None,
        *,
        exact: bool,
    ) -> None:
        self.session, self.settings, self.timeout, self._exact = session, settings, timeout, exact
        self._arrays_name, self._config_name = names
        self._exchange: Exchange | None = None
        self._online: list[int] = []
        self._asked: list[int] = []
        self._answered: set[int] = set()
        self.refusals: list[Refusal] = []
        self.failed: set[int] = set()
        self.seconds = 0.0
        self._trials = _Trials(self._patience)
        self._ask_again: dict[int, float] = {}

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
        number if it matters.
        """
        nodes = self._online = wait_for_nodes(grid, count(0))
        chosen = min(count(len(nodes)), len(nodes))
        if self._names_matter(all_asked=chosen == len(nodes)):
            self._learn_names(grid, nodes)
        return self._draw(self.session.roster.ordered(nodes), chosen, round_index)

    def note_failed(self) -> None:
        """Note who was asked and gave no good reply: if the round is repeated they come last."""
        good = {reply.node for reply in self.session.intake.accepted}
        self.failed |= set(self._asked) - good

    def letters(
        self, kind: str, nodes: list[int], record: ArrayRecord, asked: Mapping[str, Any]
    ) -> list[Message]:
        """Return one message per node; the arrays are shared between them, not copied."""
        self._exchange, self._asked, self._answered, self.refusals = None, nodes, set(), []
        self._trials = _Trials(self._patience)
        return [self._letter(node, kind, record, asked) for node in nodes]

    def exchange(self, grid: Grid, letters: Iterable[Message]) -> Exchange:
        """Send letters; iterate over the result to read the replies until the deadline."""
        size = self.session.wire.bytes
        self._exchange = Exchange(grid, letters, timeout=self._patience, reply_bytes=size)
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
        """Ask clients for their loss at a trial point; NaN from those who do not answer.

        All trials of a step share one deadline, and who missed one is not asked again.
        """
        node_of = {self.session.roster.client(node): node for node in self._asked}
        nodes = [node for c in clients if (node := node_of[c]) not in self._trials.silent]
        record, asked = self.session.pack(theta), self.common(0, rate)
        letters = [self._letter(node, f"{MessageType.QUERY}.loss", record, asked) for node in nodes]
        exchange = Exchange(grid, letters, timeout=self._trials.seconds_left())
        found = {exchange.sender(reply): _loss_of(reply) for reply in exchange}
        self._trials.silent.update(exchange.missing)
        return [found.get(node_of[client], math.nan) for client in clients]

    def _draw(self, nodes: Sequence[int], count: int, round_index: int) -> list[int]:
        fresh = [node for node in nodes if node not in self.failed]
        tired = [node for node in nodes if node in self.failed]
        sure, pool = ([], fresh) if len(fresh) >= count else (fresh, tired)
        settings = replace(self.settings, clients_per_round=count - len(sure))
        drawn = draw_clients(settings, len(pool), round_index).present
        return self.session.roster.ordered([*sure, *(pool[place] for place in drawn.tolist())])

    @property
    def _patience(self) -> float:
        return math.inf if self.timeout is None else self.timeout

    def _names_matter(self, *, all_asked: bool) -> bool:
        """Tell whether names are needed now: for a draw, or for clients with a past to go on from.

        An app that is not fedcraft's may have no answer but an error in its log. Such apps have
        neither names to draw by nor a past, so nobody asks before a reply has shown a name, unless
        a method or its user counts on fedcraft's own.
        """
        personal = self.session.initial is not None
        if all_asked:
            return personal and bool(self.session.last)
        return personal or self._exact or self.session.roster.named

    def _learn_names(self, grid: Grid, nodes: Sequence[int]) -> None:
        """Ask who is new which client it is; apps that cannot say are known by their node.

        A name is a moment's work: nobody waits long for it, nor asks a silent node over and over.
        """
        now, roster = time.monotonic(), self.session.roster
        new = [n for n in nodes if not roster.knows(n) and now >= self._ask_again.get(n, now)]
        letters = [self._letter(node, MessageType.QUERY, None, {}) for node in new]
        exchange = Exchange(grid, letters, timeout=min(self._patience, _NAME_SECONDS))
        for reply in exchange:
            self._note_name(exchange.sender(reply), reply)
        again = time.monotonic() + _ASK_AGAIN * min(self._patience, _NAME_SECONDS)
        self._ask_again |= dict.fromkeys(exchange.missing, again)

    def _note_name(self, node: int, reply: Message) -> None:
        if reply.has_error() and reply.error.code not in _APP_FAILED:
            return
        roster = self.session.roster
        try:
            roster.enter(node, roster.admissible(node, _name_in(reply), self._online))
        except FedcraftError as error:
            self._refuse(Refusal(node, None, "malformed", str(error)))

    def _letter(
        self, node: int, kind: str, record: ArrayRecord | None, asked: Mapping[str, Any]
    ) -> Message:
        client = self.session.roster.client(node)
        last, keep = self.session.last.get(client, 0), self.session.still_needed(client)
        config = ConfigRecord({**asked, keys.LAST: last, keys.KEEP: keep})
        content = RecordDict({self._config_name: config})
        if record is not None:
            content[self._arrays_name] = record
        if self.session.initial is not None and not last and kind != MessageType.QUERY:
            content[keys.INITIAL] = self.session.initial
        life = None if self.timeout is None else _LIFE * self.timeout
        return Message(content, dst_node_id=node, message_type=kind, ttl=life)

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
            named = _client_of(reply)
            client = roster.admissible(node, named, self._online)
            take(node, client, reply)
            roster.enter(node, client)  # what was refused changes nothing
        except NonFiniteError as error:
            self._refuse(Refusal(node, client, "nonfinite", str(error)))
        except FedcraftError as error:
            self._refuse(Refusal(node, client, "malformed", str(error)))

    def _refuse(self, refused: Refusal) -> None:
        self.refusals.append(refused)
        who = "unknown" if refused.client is None else refused.client
        text = "Reply of node %d (client %s) refused, %s: %s"
        log(WARNING, text, refused.node, who, refused.kind, refused.reason)


def _name_in(reply: Message) -> ClientId | None:
    """Return the name in an answer; None from an app that knows nothing of the question."""
    if reply.has_error() or len(reply.content.metric_records) != 1:
        return None
    return _client_of(reply)


def _loss_of(reply: Message) -> float:
    try:
        return math.nan if reply.has_error() else finite(metrics_of(reply.content)[1], keys.LOSS)
    except FedcraftError as error:
        log(WARNING, "Loss of node %d not read: %s", reply.metadata.src_node_id, error)
        return math.nan


def _client_of(reply: Message) -> ClientId | None:
    """Return the number a client calls itself by; None if it gives none."""
    found = metrics_of(reply.content)[1].get(keys.CLIENT)
    if found is None or (isinstance(found, int) and found >= 0):
        return found
    raise InputError(f"metric {keys.CLIENT!r}: expected a whole number >= 0, found {found!r}")
