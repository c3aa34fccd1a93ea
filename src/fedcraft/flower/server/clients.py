"""Maps nodes to clients.

Flower's node ids are random and, without SuperNode authentication, new after every restart. The
number that a client sends with its replies stays the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedcraft.errors import InputError
from fedcraft.updates import ClientId, client_order


class NameTakenError(InputError):
    """A node names a client that another node online, ``holder``, has named before."""

    def __init__(self, client: ClientId, holder: int) -> None:
        super().__init__(f"it calls itself client {client}, which is node {holder}")
        self.holder = holder


class KnownClients:
    """The clients seen so far, by node. A node that names no client is a client itself.

    ``by_node`` may come from before a restart: such an entry holds until its node names another
    client or another node names its client. ``online`` are the nodes that were online last time.
    ``named`` says whether any node has named a client: all run the same app, so the others can too.
    """

    def __init__(self) -> None:
        self.by_node: dict[int, ClientId] = {}
        self._confirmed: set[int] = set()
        self._silent: dict[int, ClientId] = {}
        self.online: list[int] = []
        self.named = False

    def client(self, node: int) -> ClientId:
        """Return the client behind a node."""
        return self.by_node.get(node, node)

    def knows(self, node: int) -> bool:
        """Tell whether the node has named its client, or was asked and had none to name."""
        return node in self._confirmed

    def checked(self, node: int, client: ClientId | None) -> ClientId:
        """Return the client that a node names, or the one it named before if it names none.

        A node may not change its name, nor take that of another node online.
        """
        known = self.client(node)
        named = known if client is None else client
        if node in self._confirmed and known not in (node, named):
            raise InputError(f"it calls itself client {named}, but was client {known} before")
        others = self._confirmed & set(self.online) - {node}
        holders = [other for other in others if self.by_node[other] == named]
        if holders:
            raise NameTakenError(named, min(holders))
        return named

    def release(self, node: int) -> None:
        """Take the name of a node that no longer answers: a restarted client may have it.

        The SuperLink lists a killed SuperNode as online until its heartbeat lapses, up to a minute
        later. Without authentication its successor has another id by then.
        """
        self._confirmed.discard(node)
        self._silent[node] = self.client(node)

    def replaced(self, node: int) -> bool:
        """Tell whether a silent node's client now answers from another node online."""
        client = self._silent.get(node)
        return client is not None and any(self.by_node.get(n) == client for n in self.online)

    def enter(self, node: int, client: ClientId) -> None:
        """Record the client behind a node, and forget the nodes it was behind before."""
        self.by_node = {n: held for n, held in self.by_node.items() if held != client}
        self.by_node[node] = client
        self._silent.pop(node, None)
        self._confirmed = (self._confirmed & self.by_node.keys()) | {node}
        self.named = self.named or client != node

    def ordered(self, nodes: Iterable[int]) -> list[int]:
        """Return nodes in the order of their clients."""
        return sorted(nodes, key=lambda node: client_order(self.client(node)))
