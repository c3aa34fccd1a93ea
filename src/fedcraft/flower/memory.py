"""What a client keeps between rounds, in Flower's context or in a directory of its own.

A reply may not count: it comes late, or the server dies and goes on from an earlier round. So a
state is kept by the round that made it, the server says which of the client's replies was the last
that counted, and the client goes on from there. A state goes as soon as neither the server nor a
checkpoint it keeps builds on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context
from safetensors.torch import load_file, save

from fedcraft.engine.files import write_atomically
from fedcraft.errors import InputError
from fedcraft.flower.arrays import tensors
from fedcraft.local import ClientState

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

    def keep(self, round: int, state: ClientState, *, needed: Iterable[int]) -> None:
        """Keep what ``round`` made and the rounds still ``needed``; drop all others."""
        self.write(round, state)
        for stale in set(self.rounds()) - {round, *needed}:
            self.drop(stale)


class ContextMemory(Memory):
    """States in ``context.state``: with the SuperNode, for as long as it and the run live."""

    def __init__(self, context: Context) -> None:
        self._records = context.state.array_records

    def rounds(self) -> list[int]:
        names = [name for name in self._records if name.startswith(_RECORD)]
        return sorted(int(name.removeprefix(_RECORD)) for name in names)

    def read(self, round: int) -> ClientState:
        return tensors(self._records[f"{_RECORD}{round}"])

    def write(self, round: int, state: ClientState) -> None:
        arrays = {name: Array(kept.detach().cpu().numpy()) for name, kept in state.items()}
        self._records[f"{_RECORD}{round}"] = ArrayRecord(arrays)

    def drop(self, round: int) -> None:
        del self._records[f"{_RECORD}{round}"]


class DirectoryMemory(Memory):
    """States in ``directory/run/client``: they outlive the SuperNode, the SuperLink and the run.

    Every file is written beside its place, forced to the disk and renamed into it. What earlier
    runs left is not touched: their directories can be deleted at any time.
    """

    def __init__(self, directory: str | Path, run: str, client: int) -> None:
        if not run.isalnum():
            raise InputError(f"run: expected letters and digits, found {run!r}")
        self._place = Path(directory) / run / f"client-{client:07d}"

    def _path(self, round: int) -> Path:
        return self._place / f"round-{round:07d}.safetensors"

    def rounds(self) -> list[int]:
        found = self._place.glob("round-*.safetensors")
        return sorted(int(path.stem.removeprefix("round-")) for path in found)

    def read(self, round: int) -> ClientState:
        return load_file(self._path(round))

    def write(self, round: int, state: ClientState) -> None:
        self._place.mkdir(parents=True, exist_ok=True)
        kept = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        write_atomically(self._path(round), save(kept))

    def drop(self, round: int) -> None:
        self._path(round).unlink(missing_ok=True)
