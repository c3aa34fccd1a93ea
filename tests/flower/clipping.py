"""A strategy around another one, such as users write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy as FlowerStrategy


class Clipping(FlowerStrategy):
    """Wraps a strategy and shortens every reply's update before it is aggregated."""

    def __init__(self, inner: FlowerStrategy, longest: float) -> None:
        self.inner, self.longest = inner, longest

    def configure_train(self, number: int, arrays: Any, config: Any, grid: Any) -> Any:
        self.sent = arrays
        return self.inner.configure_train(number, arrays, config, grid)

    def aggregate_train(self, number: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        for reply in replies:
            ((name, record),) = reply.content.array_records.items()
            pairs = zip(record.to_numpy_ndarrays(), self.sent.to_numpy_ndarrays(), strict=True)
            moves = [after - before for after, before in pairs]
            length = np.sqrt(sum((move**2).sum() for move in moves))
            scale = min(1.0, self.longest / float(length))
            clipped = zip(record, self.sent.to_numpy_ndarrays(), moves, strict=True)
            reply.content[name] = ArrayRecord(
                {key: torch.from_numpy(before + scale * move) for key, before, move in clipped}
            )
        return self.inner.aggregate_train(number, replies)

    def configure_evaluate(self, *args: Any) -> Any:
        return self.inner.configure_evaluate(*args)

    def aggregate_evaluate(self, *args: Any) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(*args)

    def summary(self) -> None:
        self.inner.summary()
