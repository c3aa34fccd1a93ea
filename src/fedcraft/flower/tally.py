"""The numbers that clients report, checked, and as Flower's own functions average them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flwr.app import Message, MetricRecord, RecordDict

from fedcraft.errors import InputError, NonFiniteError
from fedcraft.flower import keys
from fedcraft.flower.intake import Accepted, metrics_of
from fedcraft.updates import ClientId

__all__ = ["contents", "scored"]

_PRIVATE = frozenset({keys.CLIENT, keys.STATE_LOST})


def scored(node: int, client: ClientId, reply: Message, weight_key: str | None) -> Accepted:
    """Return an evaluation's reply; every number in it must be finite."""
    metrics = metrics_of(reply.content)
    for name, value in metrics.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise NonFiniteError(f"metric {name!r} is {value}")
    weight = 1.0 if weight_key is None else metrics.get(weight_key)
    if not isinstance(weight, (int, float)) or weight < 0:
        raise InputError(f"metric {weight_key!r}: expected a number >= 0, found {weight!r}")
    return Accepted(-1, node, client, float(weight), metrics)


def contents(replies: Sequence[Accepted], weight_key: str | None) -> tuple[list[RecordDict], str]:
    """Return the replies' metrics as Flower's functions take them: what everybody reports."""
    common = set.intersection(*(set(reply.metrics) for reply in replies)) - _PRIVATE
    key = weight_key or keys.EXAMPLES
    records = []
    for reply in replies:
        chosen = {name: value for name, value in reply.metrics.items() if name in common}
        metrics = MetricRecord({**chosen, key: reply.weight})
        records.append(RecordDict({keys.METRICS: metrics}))
    return records, key
