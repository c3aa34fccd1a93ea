"""Send messages, hand out the replies one by one as they come, stop at the deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from flwr.app import Message
from flwr.serverapp import Grid

from fedcraft.errors import InputError

__all__ = ["Exchange"]

_HELD_BYTES = 32 * 2**20
_FIRST_PAUSE = 0.05


class Exchange:
    """One round trip to some nodes.

    It can be iterated once, and yields each reply once. Only as many as fit ``_HELD_BYTES`` are
    pulled at a time, so a reader who lets go of each before the next needs room for few, whatever
    the cohort's size.
    ``timeout`` counts from when all is sent, and what is there when it ends is still pulled. After
    the iteration ``missing`` names the nodes that did not answer in time; what they still send is
    never pulled, so a late reply cannot enter another round.
    """

    def __init__(
        self,
        grid: Grid,
        messages: Iterable[Message],
        *,
        timeout: float,
        reply_bytes: int = 0,
        longest_pause: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grid = grid
        self._clock = clock
        self._longest_pause = longest_pause
        self._at_once = max(1, _HELD_BYTES // max(reply_bytes, 1))
        letters = list(messages)
        accepted = set(grid.push_messages(letters)) if letters else set()
        self._deadline = clock() + timeout
        by_id = {letter.metadata.message_id: letter.metadata.dst_node_id for letter in letters}
        self._nodes = by_id
        self._read = False
        self._waiting = set(by_id) & accepted
        self._unsent = set(by_id) - accepted

    @property
    def missing(self) -> list[int]:
        """Nodes without a reply so far, in order of their ids."""
        return sorted(self._nodes[key] for key in self._waiting | self._unsent)

    def sender(self, reply: Message) -> int:
        """Return the node a reply is from; Flower writes its own replies for nodes it has lost."""
        asked = reply.metadata.reply_to_message_id
        return self._nodes.get(asked, reply.metadata.src_node_id)

    def __iter__(self) -> Iterator[Message]:
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
            yield from self._sweep()
            if last or not self._waiting:
                return
            pause = _FIRST_PAUSE if len(self._waiting) < before else pause * 1.5
            left = self._deadline - self._clock()
            time.sleep(max(0.0, min(pause, self._longest_pause, left)))

    def _sweep(self) -> Iterator[Message]:
        keys = sorted(self._waiting)
        for first in range(0, len(keys), self._at_once):
            replies = list(self._grid.pull_messages(keys[first : first + self._at_once]))
            while replies:
                asked = replies[-1].metadata.reply_to_message_id
                known = asked in self._waiting
                self._waiting.discard(asked)
                if known:
                    yield replies.pop()  # not held here while the reader works on it
                else:
                    replies.pop()
