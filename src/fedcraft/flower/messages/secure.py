"""Messages of secure rounds: named arrays as Flower's records, and the hash of a request."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedcraft.errors import InputError
from fedcraft.flower.messages import keys
from fedcraft.flower.messages.arrays import open_array
from fedcraft.secure.agreement import Message, Transcript
from fedcraft.secure.primitives import as_array

SAID: Final = "secure-said"  # a record that all clients get alike
MINE: Final = "secure-mine"  # one for this client
ANSWER: Final = "secure-answer"
STAGE: Final = "secure-stage"
QUERY: Final = "secure"
# May differ by client: the records of the stage itself, and what is about the client's own state.
_OWN_RECORDS = (SAID, MINE, keys.INITIAL)
_OWN_SETTINGS = (keys.LAST, keys.KEEP)


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


def request_digest(content: RecordDict) -> bytes:
    """A hash of all records and settings of a request to train that clients must be given alike.

    A server that gave all clients but one a rate of zero would see the one update in the sum. Order
    counts: of two settings with one name the later one holds.
    """
    heard = Transcript()
    for name, record in content.items():
        if name not in _OWN_RECORDS:
            heard.add(f"{type(record).__name__} {name}", _fields(record))
    return heard.value


def _fields(record: ArrayRecord | ConfigRecord | MetricRecord) -> dict[str, NDArray[Any]]:
    """Arrays as they are, and settings as JSON: a ``repr`` may change when it is sent."""
    if isinstance(record, ArrayRecord):
        return {name: open_array(array) for name, array in record.items()}
    alike = {name: value for name, value in record.items() if name not in _OWN_SETTINGS}
    text = json.dumps(alike, sort_keys=True, default=lambda value: {"bytes": value.hex()})
    return {"settings": as_array(text.encode())}
