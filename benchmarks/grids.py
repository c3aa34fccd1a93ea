"""Stand-ins for Flower's grid: the clients answer in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["InProcessGrid", "LocalGrid", "through_the_wire"]

Fault = Callable[[Message, Message], Message | None]


class LocalGrid(Grid):
    """A grid of one run in this process, without the methods that no strategy calls.

    Messages need an identity, which a SuperLink would provide.
    """

    def __init__(self) -> None:
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError


def through_the_wire(message: Message) -> Message:
    """Deflate and inflate a message as a SuperLink does."""
    objects = get_all_nested_objects(message)
    contents = {key: value.deflate() for key, value in objects.items()}
    arrived = inflate_object_from_contents(message.object_id, contents)
    if not isinstance(arrived, Message):
        raise TypeError(f"expected a message, found a {type(arrived).__name__}")
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
    return arrived


class InProcessGrid(LocalGrid):
    """Nodes with random-looking ids of 64 bits, each with a client app and a context of its own.

    ``fault(question, reply)`` may change a reply, or lose it by returning None.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        *,
        node_ids: Sequence[int] | None = None,
        fault: Fault | None = None,
        node_config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        ids = node_ids or [(i + 1) * 0x9E3779B97F4A7C15 % 2**64 for i in range(clients)]
        self.app, self.fault, self.sent = app, fault, 0
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": i, **(node_config or {})},
                state=RecordDict(),
                run_config={},
            )
            for i, node in enumerate(ids)
        }
        self.replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the clients answer at once, and keep their replies."""
        accepted = []
        for message in messages:
            self.sent += 1
            key = f"message-{self.sent}"
            message.metadata.__dict__["_message_id"] = key
            accepted.append(key)
            reply = self._answer(through_the_wire(message))
            if reply is not None:
                self.replies[key] = reply
        return accepted

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have not been pulled yet, the last one first."""
        found = [key for key in message_ids if key in self.replies]
        return [through_the_wire(self.replies.pop(key)) for key in reversed(found)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Do both."""
        return self.pull_messages(list(self.push_messages(messages)))

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        try:
            reply = self.app(message, self.contexts[node])
        except Exception as error:  # a SuperNode turns whatever the app raises into an error reply
            reply = Message(Error(code=2, reason=repr(error)), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = node
        return reply if self.fault is None else self.fault(message, reply)
