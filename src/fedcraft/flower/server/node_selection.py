"""Draws the nodes of a round by their clients' numbers, as the simulator does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from logging import INFO

from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from flwr.supercore import log

from fedcraft.engine.sampling import draw_clients
from fedcraft.errors import FedcraftError
from fedcraft.flower.server.messenger import APP_FAILED, Messenger
from fedcraft.flower.server.replies import read_metrics, reported_client
from fedcraft.flower.server.reply_stream import ReplyStream

_NAME_SECONDS = 30.0
_ASK_AGAIN = 10  # times as long as the server waited for an answer
_POLL_SECONDS = 1.0


class NodeSelection:
    """Waits for nodes, learns their clients' numbers where they matter, and draws.

    ``exact`` draws by the clients' numbers from the first round on, and waits to learn them.
    ``failed`` are nodes without a good reply in the last attempt at a round: if the round is
    repeated, they are drawn last.
    """

    def __init__(self, messenger: Messenger, *, exact: bool) -> None:
        self._messenger, self._state, self._exact = messenger, messenger.state, exact
        self._ask_again: dict[int, float] = {}
        self.failed: set[int] = set()

    def choose(
        self, grid: Grid, round_index: int, fraction: float, least: int, available: int
    ) -> list[int]:
        """Return the drawn nodes in the order of their clients, as many as Flower's FedAvg asks.

        That is a ``fraction`` of the nodes online but at least ``least``; the draw waits until
        ``available`` of them are online.
        """
        nodes = self._state.clients.online = _wait_for_nodes(grid, max(available, least, 1))
        self._state.server.population = len(nodes)
        count = min(max(int(len(nodes) * fraction), least, 1), len(nodes))
        if self._numbers_matter(all_asked=count == len(nodes)):
            self._learn_numbers(grid, nodes)
        return self._draw(self._state.clients.ordered(nodes), count, round_index)

    def note_failed(self) -> None:
        """Record the nodes that were asked and gave no good reply."""
        good = {reply.node for reply in self._state.updates.accepted}
        self.failed |= set(self._messenger.asked) - good

    def _draw(self, nodes: Sequence[int], count: int, round_index: int) -> list[int]:
        fresh = [node for node in nodes if node not in self.failed]
        failed = [node for node in nodes if node in self.failed]
        sure, pool = ([], fresh) if len(fresh) >= count else (fresh, failed)
        settings = self._messenger.settings.but(clients_per_round=count - len(sure))
        drawn = draw_clients(settings, len(pool), round_index).present
        return self._state.clients.ordered([*sure, *(pool[place] for place in drawn.tolist())])

    def _numbers_matter(self, *, all_asked: bool) -> bool:
        """Tell whether clients' numbers are needed now: for a draw, or to continue from a state.

        An app that is not fedcraft's may answer the question with an error in its log. Such apps
        have neither numbers nor states, so the server does not ask before a reply has shown a
        number, unless the method or the user relies on fedcraft's clients.
        """
        personal = self._state.initial is not None
        if all_asked:
            return personal and bool(self._state.last)
        return personal or self._exact or self._state.clients.named

    def _learn_numbers(self, grid: Grid, nodes: Sequence[int]) -> None:
        """Ask new nodes for their client's number; apps that have none are known by their node.

        An answer takes a moment, so the wait is short, and a silent node is not asked every time.
        """
        now, clients = time.monotonic(), self._state.clients
        new = [n for n in nodes if not clients.knows(n) and now >= self._ask_again.get(n, now)]
        messages = [self._messenger.message(node, MessageType.QUERY, None, {}) for node in new]
        patience = min(self._messenger.patience, _NAME_SECONDS)
        stream = ReplyStream(grid, messages, timeout=patience)
        for reply in stream:
            self._note_number(stream.sender(reply), reply)
        again = time.monotonic() + _ASK_AGAIN * patience
        self._ask_again |= dict.fromkeys(stream.missing, again)

    def _note_number(self, node: int, reply: Message) -> None:
        if reply.has_error() and reply.error.code not in APP_FAILED:
            return
        clients = self._state.clients
        silent = reply.has_error() or len(reply.content.metric_records) != 1
        try:
            number = None if silent else reported_client(read_metrics(reply.content)[1])
            clients.enter(node, clients.checked(node, number))
        except FedcraftError as error:
            self._messenger.refuse(node, None, "malformed", str(error))


def _wait_for_nodes(grid: Grid, least: int) -> list[int]:
    while len(nodes := list(grid.get_node_ids())) < least:
        log(INFO, "Waiting for nodes: %d online, %d needed", len(nodes), least)
        time.sleep(_POLL_SECONDS)
    return sorted(nodes)
