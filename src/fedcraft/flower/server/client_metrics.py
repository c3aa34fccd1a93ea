"""The metrics that clients report: checked, averaged by Flower's functions, and tabulated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict

from fedcraft.flower.messages import keys
from fedcraft.flower.server.replies import (
    LARGEST_NUMBER,
    LARGEST_SIZE,
    AcceptedReply,
    Metrics,
    read_metrics,
    within,
)
from fedcraft.metrics.scores import Scores
from fedcraft.updates import ClientId

_PRIVATE = frozenset({keys.CLIENT, keys.STATE_LOST})
_NOT_METRICS = _PRIVATE | {keys.EXAMPLES}
_ALIASES = {"eval_acc": keys.ACCURACY, "eval_accuracy": keys.ACCURACY, "eval_loss": keys.TEST_LOSS}
_SPLITS = {"train-": "train", "validation-": "validation", "": "test"}  # by prefix
_ROUNDING = 1e-6  # a mean over batches of ones may exceed 1 in its last digits
_BOUNDS = {
    prefix + name: bounds
    for prefix in _SPLITS
    for name, bounds in (
        (keys.ACCURACY, (0.0, 1.0 + _ROUNDING)),
        (keys.TEST_LOSS, (-LARGEST_NUMBER, LARGEST_NUMBER)),
    )
}


def evaluation_reply(
    node: int, client: ClientId, reply: Message, weight_key: str | None
) -> AcceptedReply:
    """Return the reply to an evaluation; accuracies and losses out of range are refused."""
    record, metrics = read_metrics(reply.content)
    for name, value in metrics.items():
        bounds = _BOUNDS.get(_ALIASES.get(name, name))
        if bounds is not None and isinstance(value, (int, float)):
            within(metrics, name, *bounds)
    weight = 1.0 if weight_key is None else within(metrics, weight_key, 0, LARGEST_SIZE)
    return AcceptedReply(node, client, weight, metrics, record)


def sent_metrics(replies: Sequence[AcceptedReply], key: str) -> list[RecordDict]:
    """Return the replies' metrics as they were sent, with the weight under ``key``."""
    return [
        RecordDict({reply.record: MetricRecord({key: reply.weight, **reply.metrics})})
        for reply in replies
    ]


def common_metrics(replies: Sequence[AcceptedReply], key: str) -> list[RecordDict]:
    """Return the metrics that all replies report, with the weight under ``key``.

    Flower's averages need the same metrics from every client.
    """
    kinds = [{name: _kind(v) for name, v in reply.metrics.items()} for reply in replies]
    alike = [name for name, kind in kinds[0].items() if all(k.get(name) == kind for k in kinds)]
    common = [name for name in alike if kinds[0][name] is not None and name not in _PRIVATE]
    records = []
    for reply in replies:
        shared = {name: reply.metrics[name] for name in common}
        records.append(RecordDict({keys.METRICS: MetricRecord({**shared, key: reply.weight})}))
    return records


def _kind(value: object) -> int | None:
    """Return 0 for a number, n for a list of n numbers, None for values without a mean."""
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers):
        return None
    return len(numbers) if isinstance(value, list) else 0


def scores_of(replies: Sequence[AcceptedReply]) -> dict[str, Scores]:
    """Return, by split, the accuracy and loss of every client that reports both."""
    scores = {}
    for split in _SPLITS.values():
        rows = {reply.client: _score(_by_split(reply)[split]) for reply in replies}
        found = {client: row for client, row in rows.items() if row}
        if found:
            loss, accuracy, samples = np.asarray(list(found.values())).T
            clients = np.asarray(list(found), dtype=object)  # no other type holds all node ids
            scores[split] = Scores(clients, loss, accuracy, samples.astype(np.int64))
    return scores


def table_rows(
    round_number: int, replies: Iterable[AcceptedReply], *, evaluation: bool
) -> Iterator[tuple[object, ...]]:
    """Yield rows of clients.csv: every number that a client reports, under its split."""
    for reply in replies:
        by_split = _by_split(reply) if evaluation else {"train": reply.metrics}
        for split, metrics in by_split.items():
            samples = int(_samples(metrics) or reply.weight)
            for name, value in metrics.items():
                if name not in _NOT_METRICS and isinstance(value, (int, float)):
                    yield round_number, reply.client, split, name, value, samples


def _by_split(reply: AcceptedReply) -> dict[str, Metrics]:
    """Return an evaluation's metrics by split and under fedcraft's names.

    Where the test split's size has another name, it is the reply's weight.
    """
    found: dict[str, Metrics] = {split: {} for split in _SPLITS.values()}
    found["test"][keys.EXAMPLES] = reply.weight
    for name, value in reply.metrics.items():
        name = _ALIASES.get(name, name)
        prefix = next(prefix for prefix in _SPLITS if name.startswith(prefix))
        found[_SPLITS[prefix]][name.removeprefix(prefix)] = value
    return found


def _score(metrics: Metrics) -> list[float]:
    """Return loss, accuracy and size of one split; nothing unless all three are reported."""
    row = metrics.get(keys.TEST_LOSS), metrics.get(keys.ACCURACY), _samples(metrics)
    numbers = [float(number) for number in row if isinstance(number, (int, float))]
    return numbers if len(numbers) == len(row) else []


def _samples(metrics: Metrics) -> float | None:
    size = metrics.get(keys.EXAMPLES)
    return size if isinstance(size, (int, float)) and 1 <= size <= LARGEST_SIZE else None
