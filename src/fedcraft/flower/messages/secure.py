"""Messages of secure rounds: named arrays as Flower's records, and the hash of a model."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord

from fedcraft.flower.messages.arrays import open_array
from fedcraft.secure.agreement import Message, Transcript

SAID: Final = "secure-said"  # a record that all clients get alike
MINE: Final = "secure-mine"  # one for this client
ANSWER: Final = "secure-answer"
STAGE: Final = "secure-stage"
QUERY: Final = "secure"


def pack(message: Message) -> ArrayRecord:
    """Return named arrays as a record."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in message.items()})


def unpack(record: ArrayRecord) -> dict[str, Any]:
    """Return a record's arrays, copied."""
    return {name: open_array(array).copy() for name, array in record.items()}


def model_digest(record: ArrayRecord) -> bytes:
    """A hash of a model's arrays, the same on the server and on every client that got it."""
    heard = Transcript()
    heard.add("model", {name: open_array(array) for name, array in record.items()})
    return heard.value
