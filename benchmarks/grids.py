"""The base class of the stand-ins for Flower's grid."""

from __future__ import annotations

from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["LocalGrid"]


class LocalGrid(Grid):
    """A grid of one run in this process, without the methods that no strategy calls.

    Messages need an identity, which a SuperLink would provide.
    """

    def __init__(self) -> None:
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError
