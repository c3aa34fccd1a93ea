"""Which client sits behind which node, and who takes part in a round.

Flower's node ids are random and, without SuperNode authentication, new after every restart. What
lasts is the client's own number, which it sends with its replies.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from logging import INFO

from flwr.serverapp import Grid
from flwr.supercore import log

from fedcraft.errors import InputError
from fedcraft.updates import ClientId

__all__ = ["Roster", "client_order", "wait_for_nodes"]


class Roster:
    """The clients seen so far, by node. A node that names no client is a client of its own.

    ``named`` says whether any node has named one: all run the same app, so the others can as well.
    ``earlier`` are the names from before a restart. They hold for who does not give another.
    """

    def __init__(self) -> None:
        self._clients: dict[int, ClientId] = {}
        self.earlier: dict[int, ClientId] = {}
        self.named = False

    @property
    def names(self) -> dict[int, ClientId]:
        """The nodes that have named a client, and which."""
        return {n: c for n, c in {**self.earlier, **self._clients}.items() if c != n}

    def client(self, node: int) -> ClientId:
        """Return the client behind a node."""
        return self._clients.get(node, self.earlier.get(node, node))

    def knows(self, node: int) -> bool:
        """Tell whether the node has named its client, or was asked and had none to name."""
        return node in self._clients

    def admissible(self, node: int, client: ClientId | None, online: Iterable[int]) -> ClientId:
        """Return who a node says it is; nobody may change names or take that of a node online.

        One that says nothing this time is who it was.
        """
        known = self._clients.get(node, node)
        named = self.client(node) if client is None else client
        if known not in (node, named):
            raise InputError(f"it calls itself client {named}, but was client {known} before")
        holders = self._holders(named) - {node}
        if holders & set(online):
            raise InputError(f"it calls itself client {named}, which is node {min(holders)}")
        return named

    def enter(self, node: int, client: ClientId) -> None:
        """Note who a node is, and forget the nodes that were it before."""
        for gone in self._holders(client) - {node}:
            del self._clients[gone]
        self.earlier = {n: held for n, held in self.earlier.items() if held != client}
        self._clients[node] = client
        self.named = self.named or client != node

    def _holders(self, client: ClientId) -> set[int]:
        return {node for node, held in self._clients.items() if held == client}

    def ordered(self, nodes: Iterable[int]) -> list[int]:
        """Return nodes in the order of their clients."""
        return sorted(nodes, key=lambda node: client_order(self.client(node)))


def client_order(client: ClientId) -> tuple[bool, int, str]:
    """Sort numbers by value and before names."""
    return (False, client, "") if isinstance(client, int) else (True, 0, client)


def wait_for_nodes(grid: Grid, least: int, *, pause: float = 1.0) -> list[int]:
    """Return the ids of all nodes online as soon as there are ``least`` of them."""
    while len(nodes := list(grid.get_node_ids())) < least:
        log(INFO, "Waiting for nodes: %d online, %d needed", len(nodes), least)
        time.sleep(pause)
    return sorted(nodes)
