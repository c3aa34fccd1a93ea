"""Messages of secure rounds: named arrays as Flower's records, and the hash of a request."""

from __future__ import annotations

from collections import ChainMap
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from fedcraft.errors import InputError
from fedcraft.flower.messages import keys
from fedcraft.flower.messages.arrays import open_array
from fedcraft.secure.agreement import Message, Transcript
from fedcraft.secure.primitives import digest

SAID: Final = "secure-said"  # a record that all clients get alike
MINE: Final = "secure-mine"  # one for this client
ANSWER: Final = "secure-answer"
STAGE: Final = "secure-stage"
QUERY: Final = "secure"
_OWN = (keys.LAST, keys.KEEP)  # settings about one client's state


def pack(message: Message) -> ArrayRecord:
    """Return named arrays as a record."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in message.items()})


def unpack(record: ArrayRecord) -> dict[str, Any]:
    """Return a record's arrays, copied."""
    return {name: open_array(array).copy() for name, array in record.items()}


def answer_of(content: RecordDict) -> dict[str, Any]:
    """Return the arrays of a client's answer; ``InputError`` if there is none to read."""
    if ANSWER not in content.array_records:
        raise InputError(f"expected an ArrayRecord {ANSWER!r}, found none")
    return unpack(content.array_records[ANSWER])


def request_digest(model: ArrayRecord, content: RecordDict) -> bytes:
    """A hash of a model's arrays and of all settings, the same for all clients of a round.

    A server that gave all clients but one a rate of zero would see the one update in the sum.
    """
    config = ChainMap(*(dict(record) for record in content.config_records.values()))
    heard = Transcript()
    heard.add("model", {name: open_array(array) for name, array in model.items()})
    alike = sorted((name, value) for name, value in config.items() if name not in _OWN)
    return digest(heard.value, repr(alike).encode())
