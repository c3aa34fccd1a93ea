"""How the benchmark and a contestant talk: a line of JSON each way.

``{"do": "train", "rounds": 5}`` is answered with ``{"seconds": ..., "samples": ...}``,
``{"do": "evaluate"}`` with ``{"seconds": ..., "accuracy": ...}``. A contestant that waits for its
turn sleeps in a read and takes nothing from the others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["Answer", "Channel", "serve"]

Answer = dict[str, Any]


class Channel:
    """Standard input and the real standard output; what others print goes to standard error."""

    def __init__(self) -> None:
        self._in: TextIO = sys.stdin
        self._out: TextIO = sys.stdout
        sys.stdout = sys.stderr

    def say(self, answer: Answer) -> None:
        """Answer."""
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()

    def hear(self) -> Answer | None:
        """Wait for the next wish; None when the benchmark has gone."""
        line = self._in.readline()
        return json.loads(line) if line else None


def serve(channel: Channel, train: Callable[[int], Answer], evaluate: Callable[[], Answer]) -> None:
    """Say that you are ready, then do what you are asked for until nobody asks any more."""
    channel.say({"ready": True})
    while (wish := channel.hear()) is not None:
        channel.say(train(wish["rounds"]) if wish["do"] == "train" else evaluate())
