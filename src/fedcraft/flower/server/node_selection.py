"""Draws the nodes of a round by their clients' numbers, as the simulator does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from logging import INFO, WARNING

from flwr.app import Error, Message, MessageType
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore import log

from fedcraft.engine.sampling import draw_clients
from fedcraft.errors import FedcraftError
from fedcraft.flower.server.clients import NameTakenError
from fedcraft.flower.server.messenger import LOST, Messenger
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
        self._seen: set[int] = set()
        self._warned = False
        self.failed: set[int] = set()

    def choose(
        self, grid: Grid, round_index: int, fraction: float, least: int, available: int
    ) -> list[int]:
        """Return the drawn nodes in the order of their clients, as many as Flower's FedAvg asks.

        That is a ``fraction`` of the nodes online but at least ``least``; the draw waits until
        ``available`` of them are online.
        """
        nodes = self._wait_for_nodes(grid, max(available, least, 1))
        self._warn_of_new_ids(nodes)
        self._state.server.population = len(nodes)
        count = min(max(int(len(nodes) * fraction), least, 1), len(nodes))
        if self._numbers_matter(all_asked=count == len(nodes)):
            self._learn_numbers(grid, nodes)
        return self._draw(self._state.clients.ordered(nodes), count, round_index)

    def _warn_of_new_ids(self, nodes: Sequence[int]) -> None:
        """Say once that nodes without a name went and others came: maybe the same clients."""
        came, gone = set(nodes) - self._seen, self._seen - set(nodes)
        if came and gone and not self._state.clients.named and not self._warned:
            self._warned = True
            log(
                WARNING,
                "%d nodes are gone and %d are new. Clients that name no number are known by the id "
                "of their node, which without SuperNode authentication is a new one after "
                "every restart. To follow them, report a number as the metric 'client-id', for "
                "example with ClientApp(mods=[fedcraft.flower.client_id_mod])",
                len(gone),
                len(came),
            )
        self._seen |= set(nodes)

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
        if self._state.private is not None:
            return True  # the account of the budget is by client
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
        answers = self._ask(grid, new)
        # A node that had a name before is heard before one that would take it.
        order = sorted(answers, key=lambda node: node not in clients.by_node)
        claims = [claim for node in order if (claim := self._enter(node, answers))]
        here = self._ask(grid, [holder for _, holder in claims])
        for node, holder in claims:
            if holder not in here:
                clients.release(holder)
            if self._enter(node, answers) is not None:
                reason = f"it calls itself a client that is node {holder}"
                self._messenger.refuse(node, None, "malformed", reason)
                self._ask_again[node] = time.monotonic() + _ASK_AGAIN * self._patience

    @property
    def _patience(self) -> float:
        return min(self._messenger.patience, _NAME_SECONDS)

    def _ask(self, grid: Grid, nodes: Sequence[int]) -> dict[int, Message]:
        """Ask nodes for their client's number and return the answers of those that are there."""
        messages = [self._messenger.message(node, MessageType.QUERY, None, {}) for node in nodes]
        stream = ReplyStream(grid, messages, timeout=self._patience)
        answers = {stream.sender(reply): reply for reply in stream}
        again = time.monotonic() + _ASK_AGAIN * self._patience
        self._ask_again |= dict.fromkeys(stream.missing, again)
        found = answers.items()
        return {n: reply for n, reply in found if not reply.has_error() or _is_there(reply.error)}

    def _enter(self, node: int, answers: Mapping[int, Message]) -> tuple[int, int] | None:
        """Record the client that a node names; return the node and the holder if it is taken."""
        clients, reply = self._state.clients, answers[node]
        silent = reply.has_error() or len(reply.content.metric_records) != 1
        try:
            number = None if silent else reported_client(read_metrics(reply.content)[1])
            clients.enter(node, clients.checked(node, number))
        except NameTakenError as error:
            return node, error.holder
        except FedcraftError as error:
            self._messenger.refuse(node, None, "malformed", str(error))
        return None

    def _wait_for_nodes(self, grid: Grid, least: int) -> list[int]:
        clients = self._state.clients
        while True:
            clients.online = sorted(grid.get_node_ids())
            nodes = [node for node in clients.online if not clients.replaced(node)]
            if len(nodes) >= least:
                return nodes
            log(INFO, "Waiting for nodes: %d online, %d needed", len(nodes), least)
            time.sleep(_POLL_SECONDS)


def _is_there(error: Error) -> bool:
    """Tell whether an error comes from the node's app, and not from Flower in its place."""
    return error.code not in (*LOST, ErrorCode.CLIENT_APP_CRASHED)
