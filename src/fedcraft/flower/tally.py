"""The numbers that clients report: checked, averaged as Flower's own functions do, summed up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict

from fedcraft.engine.fleet import Scores
from fedcraft.flower import keys
from fedcraft.flower.intake import (
    LARGEST_NUMBER,
    LARGEST_SIZE,
    Accepted,
    Metrics,
    metrics_of,
    within,
)
from fedcraft.metrics import summarise
from fedcraft.updates import ClientId

__all__ = ["as_sent", "contents", "scored", "scores_of", "summary", "without_scores"]

_PRIVATE = frozenset({keys.CLIENT, keys.STATE_LOST})
_ALIASES = {"eval_acc": keys.ACCURACY, "eval_accuracy": keys.ACCURACY, "eval_loss": keys.TEST_LOSS}
_SPLITS = {"": "test", "train-": "train", "validation-": "validation"}
_ROUNDING = 1e-6  # a mean over batches of ones may exceed 1 in its last digits
_BOUNDS = {
    prefix + name: bounds
    for prefix in _SPLITS
    for name, bounds in (
        (keys.ACCURACY, (0.0, 1.0 + _ROUNDING)),
        (keys.TEST_LOSS, (-LARGEST_NUMBER, LARGEST_NUMBER)),
    )
}


def scored(node: int, client: ClientId, reply: Message, weight_key: str | None) -> Accepted:
    """Return an evaluation's reply; its accuracies and losses must be possible ones."""
    record, metrics = metrics_of(reply.content)
    for name, value in metrics.items():
        bounds = _BOUNDS.get(_ALIASES.get(name, name))
        if bounds is not None and isinstance(value, (int, float)):
            within(metrics, name, *bounds)
    weight = 1.0 if weight_key is None else within(metrics, weight_key, 0, LARGEST_SIZE)
    return Accepted(-1, node, client, weight, metrics, record=record)


def as_sent(replies: Sequence[Accepted], weight_key: str | None) -> tuple[list[RecordDict], str]:
    """Return the replies as a user's function expects them, but without their arrays."""
    key = weight_key or keys.EXAMPLES
    return [
        RecordDict({reply.record: MetricRecord({key: reply.weight, **reply.metrics})})
        for reply in replies
    ], key


def without_scores(reply: Accepted) -> Accepted:
    """Return a reply with only the numbers that :func:`scores_of` does not take."""
    named = _named(reply)
    taken = {name for prefix in _SPLITS if _row(named, prefix) for name in _columns(prefix)}
    taken |= {prefix + keys.EXAMPLES for prefix in _SPLITS}
    left = {name: value for name, value in named.items() if name not in taken}
    return replace(reply, metrics=left)


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


def scores_of(replies: Sequence[Accepted]) -> dict[str, Scores]:
    """Return, by split, the accuracy and loss of every client that reports both.

    Where the test part's size goes by another name, it is the reply's weight.
    """
    scores = {}
    for prefix, split in _SPLITS.items():
        rows = {reply.client: _row(_named(reply), prefix) for reply in replies}
        tested = {c: row for c, row in rows.items() if row and 1 <= row[-1] <= LARGEST_SIZE}
        if tested:
            loss, accuracy, samples = np.asarray(list(tested.values())).T
            clients = np.asarray(list(tested), dtype=object)  # no other type holds all node ids
            scores[split] = Scores(clients, loss, accuracy, samples.astype(np.int64))
    return scores


def _named(reply: Accepted) -> Metrics:
    return {keys.EXAMPLES: reply.weight} | {_ALIASES.get(n, n): v for n, v in reply.metrics.items()}


def _columns(prefix: str) -> list[str]:
    return [prefix + name for name in (keys.TEST_LOSS, keys.ACCURACY, keys.EXAMPLES)]


def _row(named: Metrics, prefix: str) -> list[float]:
    """Return loss, accuracy and size of one part; nothing unless all three are there."""
    row = [named.get(name) for name in _columns(prefix)]
    numbers = [float(number) for number in row if isinstance(number, (int, float))]
    return numbers if len(numbers) == len(row) else []


def summary(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Return the numbers of an evaluation as the simulator does."""
    found = {
        f"{split}_loss": float(np.average(score.loss, weights=score.samples))
        for split, score in scores.items()
    }
    if "test" in scores:
        found |= summarise(scores["test"].accuracy, scores["test"].samples)
    return found
