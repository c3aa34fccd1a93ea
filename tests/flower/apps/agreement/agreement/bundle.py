"""Several strategies' messages to a node as one message: a tenth of the processes, the same work.

Record names get the method's name in front. The strategies run in threads and in step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from flwr.app import Message, RecordDict
from flwr.app.message import make_message
from flwr.serverapp import Grid

MARK = "/"


class Bundle:
    """The messages and replies of all members; they meet here in every round."""

    def __init__(self, grid: Grid, members: list[str]) -> None:
        self.grid = grid
        self._messages: dict[int, dict[str, Message]] = {}
        self._sent: dict[str, dict[str, Message]] = {}
        self._arrived: dict[str, Message] = {}
        self._lock = threading.Lock()
        self._meeting = threading.Barrier(len(members), action=self._send)

    def hand_in(self, member: str, messages: list[Message]) -> list[str]:
        with self._lock:
            for message in messages:
                node = message.metadata.dst_node_id
                self._messages.setdefault(node, {})[member] = message
        self._meeting.wait()
        return [message.metadata.message_id for message in messages]

    def collect(self, ids: Iterable[str]) -> list[Message]:
        with self._lock:
            for reply in self.grid.pull_messages(list(self._sent)):
                self._open(reply)
            return [self._arrived.pop(key) for key in ids if key in self._arrived]

    def _send(self) -> None:
        """Called by the last to arrive, while the others wait."""
        bundles = {}
        for node, messages in self._messages.items():
            first = next(iter(messages.values()))
            kind, ttl = first.metadata.message_type, first.metadata.ttl
            content = joined({m: message.content for m, message in messages.items()})
            bundles[node] = Message(content, dst_node_id=node, message_type=kind, ttl=ttl)
        keys = self.grid.push_messages(list(bundles.values()))
        for key, node in zip(keys, bundles, strict=True):
            for member, message in self._messages[node].items():
                message.metadata.__dict__["_message_id"] = f"{member}{MARK}{key}"
            self._sent[key] = self._messages[node]
        self._messages = {}

    def _open(self, reply: Message) -> None:
        messages = self._sent.pop(reply.metadata.reply_to_message_id)
        for member, content in parted(reply.content).items():
            answer = Message(content, reply_to=messages[member])
            self._arrived[messages[member].metadata.message_id] = answer


class Share(Grid):
    """One member's view of the bundle: an ordinary grid."""

    def __init__(self, bundle: Bundle, member: str) -> None:
        self._bundle, self._member = bundle, member

    def set_run(self, run: object) -> None:
        raise NotImplementedError

    @property
    def run(self) -> object:
        raise NotImplementedError

    def create_message(self, *args: object, **kwargs: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return self._bundle.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._bundle.hand_in(self._member, list(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._bundle.collect(message_ids)

    def send_and_receive(self, *args: object, **kwargs: object) -> Iterable[Message]:
        raise NotImplementedError


def joined(contents: dict[str, RecordDict]) -> RecordDict:
    """Put several contents into one."""
    return RecordDict(
        {f"{m}{MARK}{name}": r for m, content in contents.items() for name, r in content.items()}
    )


def parted(content: RecordDict) -> dict[str, RecordDict]:
    """Take them apart again."""
    found: dict[str, RecordDict] = {}
    for full, record in content.items():
        member, _, name = full.partition(MARK)
        found.setdefault(member, RecordDict())[name] = record
    return found


def each(message: Message, answer: Callable[[str, Message], Message]) -> Message:
    """Answer every part of a bundle, and bundle the answers."""
    replies = {
        member: answer(member, make_message(metadata=message.metadata, content=content)).content
        for member, content in parted(message.content).items()
    }
    return Message(joined(replies), reply_to=message)
