"""Sends messages and yields the replies one by one as they arrive, until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from flwr.app import Message
from flwr.serverapp import Grid

from fedcraft.errors import InputError

_HELD_BYTES = 32 * 2**20
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class ReplyStream:
    """The replies to some messages, each of which can be read once.

    Only as many as fit ``_HELD_BYTES`` are pulled at a time, so a reader that frees each reply
    before the next needs memory for few, whatever the size of the cohort. ``timeout`` counts from
    the end of sending, and replies that are there when it ends are still pulled. After the
    iteration ``missing`` names the nodes that did not answer in time; later replies are never
    pulled, so they cannot enter another round.
    """

    def __init__(
        self,
        grid: Grid,
        messages: Iterable[Message],
        *,
        timeout: float,
        reply_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grid, self._clock = grid, clock
        self._at_once = max(1, _HELD_BYTES // max(reply_bytes, 1))
        sent = list(messages)
        taken = set(grid.push_messages(sent)) if sent else set()
        self._deadline = clock() + timeout
        self._nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in sent}
        self._waiting = set(self._nodes) & taken
        self._unsent = set(self._nodes) - taken
        self._read = False
        self._all: list[Message] | None = None

    @property
    def missing(self) -> list[int]:
        """Nodes without a reply so far, in order of their ids."""
        return sorted(self._nodes[key] for key in self._waiting | self._unsent)

    def sender(self, reply: Message) -> int:
        """Return the node a reply is from; Flower itself replies for nodes that it has lost."""
        return self._nodes.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)

    def __len__(self) -> int:
        """Return the number of replies, which loads all of them into memory."""
        if self._all is None and self._read:
            raise TypeError("replies: their number is not known while they are read one by one")
        if self._all is None:
            self._all = list(iter(self))
        return len(self._all)

    def __iter__(self) -> Iterator[Message]:
        if self._all is not None:
            return iter(self._all)
        if self._read:
            raise InputError(
                "replies: they can be read once, so that few are in memory at a time; to read them "
                "again, make a list(replies) first and use that"
            )
        self._read = True
        return self._replies()

    def _replies(self) -> Iterator[Message]:
        pause = _FIRST_PAUSE
        while self._waiting:
            last = self._clock() >= self._deadline
            before = len(self._waiting)
            yield from self._pull()
            if last or not self._waiting:
                return
            pause = _FIRST_PAUSE if len(self._waiting) < before else pause * 1.5
            left = self._deadline - self._clock()
            time.sleep(max(0.0, min(pause, _LONGEST_PAUSE, left)))

    def _pull(self) -> Iterator[Message]:
        keys = sorted(self._waiting)
        for first in range(0, len(keys), self._at_once):
            replies = list(self._grid.pull_messages(keys[first : first + self._at_once]))
            while replies:
                key = replies[-1].metadata.reply_to_message_id
                if key in self._waiting:
                    self._waiting.discard(key)
                    yield replies.pop()  # not held here while the reader works on it
                else:
                    replies.pop()
