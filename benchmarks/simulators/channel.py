"""The channel between the benchmark and a contestant: one line of JSON each way.

``{"do": "train", "rounds": 5}`` is answered with ``{"seconds": ..., "samples": ...}``,
``{"do": "evaluate"}`` with ``{"seconds": ..., "accuracy": ...}``. A contestant that waits for its
turn blocks in a read and uses no processor time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["Answer", "Channel", "serve"]

Answer = dict[str, Any]


class Channel:
    """Standard input and output; everything else that is printed goes to standard error."""

    def __init__(self) -> None:
        self._in: TextIO = sys.stdin
        self._out: TextIO = sys.stdout
        sys.stdout = sys.stderr

    def send(self, answer: Answer) -> None:
        """Send an answer to the benchmark."""
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()

    def receive(self) -> Answer | None:
        """Wait for the next request; None when the benchmark has ended."""
        line = self._in.readline()
        return json.loads(line) if line else None


def serve(channel: Channel, train: Callable[[int], Answer], evaluate: Callable[[], Answer]) -> None:
    """Report that the contestant is ready, then answer requests until the benchmark ends."""
    channel.send({"ready": True})
    while (request := channel.receive()) is not None:
        channel.send(train(request["rounds"]) if request["do"] == "train" else evaluate())
