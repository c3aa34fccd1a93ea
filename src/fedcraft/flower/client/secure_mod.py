"""The client's side of secure rounds on Flower: a mod around training, and a query handler."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray

from fedcraft.errors import require
from fedcraft.flower.messages import keys
from fedcraft.flower.messages import secure as wire
from fedcraft.flower.messages.arrays import open_array
from fedcraft.secure.agreement import RefusedError
from fedcraft.secure.client import SecureClient
from fedcraft.secure.limits import Limits
from fedcraft.updates import Layout

_RECORD = "fedcraft-secure"
_TENSORS = "fedcraft-secure-tensors"


class SecureAnswers:
    """Answers the stages of a secure round. The client's secrets stay in Flower's context.

    Training is answered with a sketch in place of the update. A server that asks for the update
    itself is refused.
    """

    def __init__(self, limits: Limits | None = None, *, psk: bytes = b"") -> None:
        fine = limits is None or isinstance(limits, Limits)
        require(fine, "SecureAnswers.limits", "None or Limits(...)", limits)
        require(isinstance(psk, bytes), "SecureAnswers.psk", "bytes, such as b'...'", type(psk))
        self.limits, self._psk = limits or Limits(), psk

    def with_equal_sums(self) -> SecureAnswers:
        """Return the answers of a client with the limit ``equal_sums``."""
        found = copy(self)
        found.limits = replace(self.limits, equal_sums=True)
        return found

    def train(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Flower's mod: train, keep the update here, and return its sketch."""
        asked = message.content.array_records
        if wire.SAID not in asked:
            raise RefusedError("train: this client takes part in secure rounds only")
        # Mods and app may change the message; the hash is of what has arrived.
        request = wire.request_digest(message.content)
        said, mine = wire.unpack(asked[wire.SAID]), wire.unpack(asked[wire.MINE])
        for name in (wire.SAID, wire.MINE):
            del message.content[name]
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        update = torch.from_numpy(update_of(reply.content))
        client, tensors = self._client(context), wire.unpack(context.state.array_records[_TENSORS])
        answer = client.sketch(said, mine, update, request, tensors["sizes"].tolist())
        self._keep(client, context)
        # Only the metrics of the reply are kept: no array of it may leave.
        kept = RecordDict({wire.ANSWER: wire.pack(answer)})
        for name, metrics in reply.content.metric_records.items():
            kept[name] = metrics
        reply.content = kept
        return reply

    def query(self, message: Message, context: Context) -> Message:
        """Answer every other stage."""
        asked = message.content.array_records
        said, mine = wire.unpack(asked[wire.SAID]), wire.unpack(asked[wire.MINE])
        stage = str(message.content.config_records[keys.CONFIG][wire.STAGE])
        client = self._client(context)
        answer = client.answer(stage, said, mine)
        self._keep(client, context)
        return Message(RecordDict({wire.ANSWER: wire.pack(answer)}), reply_to=message)

    def note_layout(self, layout: Layout, context: Context) -> None:
        """Keep the sizes of the tensors in the app's updates: no layer of the server may cut one.

        The app calls this, so that the model need not be built a second time.
        """
        sizes = [slot.stop - slot.start for slot in layout.tensors]
        context.state[_TENSORS] = wire.pack({"sizes": np.array(sizes)})

    def _client(self, context: Context) -> SecureClient:
        stored = context.state.array_records.get(_RECORD)
        memory = {} if stored is None else wire.unpack(stored)
        return SecureClient(self.limits, psk=self._psk, memory=memory)

    def _keep(self, client: SecureClient, context: Context) -> None:
        context.state[_RECORD] = wire.pack(client.memory)


def update_of(content: RecordDict) -> NDArray[Any]:
    """Return the update in a reply of fedcraft's client app."""
    found = content.array_records.get(keys.UPDATE)
    if found is None or keys.ROW not in found:
        raise RefusedError(
            "train: expected the app to return an update; in secure and in private rounds the "
            "client app must be fedcraft's, with the layout of the server's model"
        )
    return open_array(found[keys.ROW]).copy()
