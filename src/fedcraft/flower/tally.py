"""The numbers that clients report, checked, and as Flower's own functions average them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flwr.app import Message, MetricRecord, RecordDict

from fedcraft.errors import NonFiniteError
from fedcraft.flower import keys
from fedcraft.flower.intake import LARGEST_SIZE, Accepted, metrics_of, within
from fedcraft.updates import ClientId

__all__ = ["contents", "scored"]

_PRIVATE = frozenset({keys.CLIENT, keys.STATE_LOST})


def scored(node: int, client: ClientId, reply: Message, weight_key: str | None) -> Accepted:
    """Return an evaluation's reply; every number in it must be finite."""
    metrics = metrics_of(reply.content)
    for name, value in metrics.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise NonFiniteError(f"metric {name!r} is {value}")
    weight = 1.0 if weight_key is None else within(metrics, weight_key, 0, LARGEST_SIZE)
    return Accepted(-1, node, client, weight, metrics)


def contents(replies: Sequence[Accepted], weight_key: str | None) -> tuple[list[RecordDict], str]:
    """Return the replies' metrics as Flower's functions take them: what everybody reports alike."""
    kinds = [{name: _kind(v) for name, v in reply.metrics.items()} for reply in replies]
    alike = [name for name, kind in kinds[0].items() if all(k.get(name) == kind for k in kinds)]
    common = {name for name in alike if kinds[0][name] is not None} - _PRIVATE
    key = weight_key or keys.EXAMPLES
    records = []
    for reply in replies:
        chosen = {name: value for name, value in reply.metrics.items() if name in common}
        metrics = MetricRecord({**chosen, key: reply.weight})
        records.append(RecordDict({keys.METRICS: metrics}))
    return records, key


def _kind(value: object) -> int | None:
    """0 for a number, n for a list of n numbers; None for what no mean can be taken of."""
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers):
        return None
    return len(numbers) if isinstance(value, list) else 0
