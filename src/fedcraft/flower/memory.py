"""What a client keeps between rounds, in Flower's context or in a directory of its own.

A reply may not count: it comes late, or the server dies and goes on from an earlier round. So a
state is kept by the round that made it, the server says which of the client's replies was the last
that counted, and the client goes on from there. Older states go as soon as no checkpoint of the
server can lead back to them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, Context

from fedcraft.errors import InputError
from fedcraft.flower.arrays import open_array
from fedcraft.local import ClientState, ClientStates

__all__ = ["ContextMemory", "DirectoryMemory", "Memory"]

_RECORD = "fedcraft-state-"


class Memory(ABC):
    """The states of one client in one run, by the round that made them."""

    @abstractmethod
    def rounds(self) -> list[int]:
        """Return the rounds of the states kept, oldest first."""

    @abstractmethod
    def read(self, round: int) -> ClientState:
        """Return the state that ``round`` made."""

    @abstractmethod
    def write(self, round: int, state: ClientState) -> None:
        """Keep what ``round`` made."""

    @abstractmethod
    def drop(self, round: int) -> None:
        """Forget what ``round`` made."""

    def at(self, round: int) -> ClientState | None:
        """Return what ``round`` made; None for round 0 and for what is lost."""
        return self.read(round) if round in self.rounds() else None

    def keep(self, round: int, state: ClientState, *, oldest: int) -> None:
        """Keep what ``round`` made; the server will not ask for anything before ``oldest``."""
        self.write(round, state)
        for stale in [kept for kept in self.rounds() if kept < oldest]:
            self.drop(stale)


class ContextMemory(Memory):
    """States in ``context.state``: with the SuperNode, for as long as it and the run live."""

    def __init__(self, context: Context) -> None:
        self._records = context.state.array_records

    def rounds(self) -> list[int]:
        names = [name for name in self._records if name.startswith(_RECORD)]
        return sorted(int(name.removeprefix(_RECORD)) for name in names)

    def read(self, round: int) -> ClientState:
        record = self._records[f"{_RECORD}{round}"]
        return {name: torch.from_numpy(open_array(a).copy()) for name, a in record.items()}

    def write(self, round: int, state: ClientState) -> None:
        arrays = {name: Array(kept.detach().cpu().numpy()) for name, kept in state.items()}
        self._records[f"{_RECORD}{round}"] = ArrayRecord(arrays)

    def drop(self, round: int) -> None:
        del self._records[f"{_RECORD}{round}"]


class DirectoryMemory(Memory):
    """States in ``directory/run``: they outlive the SuperNode, the SuperLink and the run.

    Every file is written beside its place, forced to the disk and renamed into it. What earlier
    runs left is not touched: their directories can be deleted at any time.
    """

    def __init__(self, directory: str | Path, run: str, client: int) -> None:
        if not run or not run.isalnum():
            raise InputError(f"run: expected letters and digits, found {run!r}")
        self._place, self._client = Path(directory) / run, client

    def _path(self, round: int) -> Path:
        return self._place / f"client-{self._client:07d}-round-{round:07d}.safetensors"

    def rounds(self) -> list[int]:
        names = [
            path.stem for path in self._place.glob(f"client-{self._client:07d}-round-*.safetensors")
        ]
        return sorted(int(name.rpartition("-")[2]) for name in names)

    def read(self, round: int) -> ClientState:
        path, states = self._path(round), ClientStates(self._place)
        states.load({str(self._client): [path.name, path.stat().st_size]})
        state = states.get(self._client)
        return {} if state is None else state

    def write(self, round: int, state: ClientState) -> None:
        states = ClientStates(self._place)
        states.put(self._client, state, round)
        states.save()

    def drop(self, round: int) -> None:
        self._path(round).unlink(missing_ok=True)
