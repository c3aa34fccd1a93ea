"""What clients keep between rounds: in memory up to a budget, on disk above it, safe at all times.

A state on disk is one safetensors file per (client, round), written beside its place and renamed
into it, and never changed afterwards. A checkpoint is then an index, client -> file: it costs the
clients that changed since the last one, two checkpoints share the files of all others, and a
process that is killed leaves at most files that no index names.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedcraft.errors import CheckpointError, InputError, require
from fedcraft.local.base import ClientState

__all__ = ["ClientStates", "StateIndex"]

StateIndex = dict[str, list[str | int]]  # client -> [file name, size in bytes]: plain JSON


class _Entry(NamedTuple):
    state: ClientState
    round: int
    size: int


class ClientStates:
    """The states of all clients by id.

    ``directory`` holds the files; without one everything stays in memory and cannot be saved.
    Above ``memory_mb`` the states unused for longest leave memory. Reading one back costs a file
    of its size; nothing is ever pickled. States are shared, not copied: do not change them.
    """

    def __init__(self, directory: str | Path | None = None, *, memory_mb: float = 1024.0) -> None:
        require(memory_mb >= 0, "memory_mb", "a number >= 0", memory_mb)
        self.directory = None if directory is None else Path(directory)
        self.budget = memory_mb * 2**20
        self._memory: OrderedDict[int, _Entry] = OrderedDict()
        self._files: dict[int, Path] = {}
        self._unsynced: set[Path] = set()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.ids())

    def __contains__(self, client: object) -> bool:
        return client in self._memory or client in self._files

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids())

    def ids(self) -> list[int]:
        """Return the clients that keep something, in order."""
        return sorted(self._memory.keys() | self._files.keys())

    @property
    def memory_bytes(self) -> int:
        """Bytes of the states now in memory."""
        return self._bytes

    def get(self, client: int) -> ClientState | None:
        """Return a client's state, or None if it keeps nothing."""
        if client in self._memory:
            self._memory.move_to_end(client)
            return self._memory[client].state
        if client not in self._files:
            return None
        path = self._files[client]
        state, round = _read(path, client)
        self._remember(client, _Entry(state, round, _size(state)))
        return state

    def put(self, client: int, state: ClientState, round: int) -> None:
        """Keep ``state`` for ``client`` from ``round`` on, in the place of what it kept before."""
        self._files.pop(client, None)  # the file stays: a checkpoint may name it
        self._remember(client, _Entry(state, round, _size(state)))

    def save(self) -> StateIndex:
        """Bring every state to disk and return the index that :meth:`load` takes.

        When this returns, the files survive a power cut. Store the index atomically.
        """
        for client, entry in self._memory.items():
            if client not in self._files:
                self._write(client, entry)
        for path in sorted(self._unsynced):
            _sync(path)
        if self._unsynced:
            _sync(self._place())
        self._unsynced.clear()
        return {str(c): [p.name, p.stat().st_size] for c, p in sorted(self._files.items())}

    def load(self, index: Mapping[str, Iterable[str | int]]) -> None:
        """Continue from a saved index: what is held now is forgotten, and nothing is read yet.

        A file that is missing or has another size is an error at once.
        """
        files = {}
        for client, (name, size) in index.items():
            path = self._place() / str(name)
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                raise CheckpointError(
                    f"{path}: expected {size} bytes, found {'no file' if found is None else found};"
                    f" the state of client {client} is lost, resume from an earlier checkpoint"
                )
            files[int(client)] = path
        self._memory.clear()
        self._unsynced.clear()
        self._files, self._bytes = files, 0

    def prune(self, kept: Iterable[Mapping[str, Iterable[str | int]]]) -> int:
        """Delete every file that neither this store nor an index in ``kept`` needs; count them."""
        if self.directory is None or not self.directory.is_dir():
            return 0
        needed = {path.name for path in self._files.values()}
        for index in kept:
            needed |= {str(next(iter(entry))) for entry in index.values()}
        found = self.directory.glob("client-*.safetensors*")
        stale = [path for path in found if path.name not in needed]
        for path in stale:
            path.unlink()
        return len(stale)

    def _remember(self, client: int, entry: _Entry) -> None:
        if client in self._memory:
            self._bytes -= self._memory.pop(client).size
        self._memory[client] = entry
        self._bytes += entry.size
        while self._bytes > self.budget and self.directory is not None and self._memory:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        client = next(iter(self._memory))
        if client not in self._files:
            self._write(client, self._memory[client])
        self._bytes -= self._memory.pop(client).size

    def _write(self, client: int, entry: _Entry) -> None:
        path = _unused(self._place(), f"client-{client:07d}-round-{entry.round:07d}")
        about = {"client": str(client), "round": str(entry.round)}
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        tensors = {name: kept.detach().contiguous() for name, kept in entry.state.items()}
        try:
            save_file(tensors, draft, metadata=about)
            draft.replace(path)
        except (OSError, SafetensorError) as error:
            draft.unlink(missing_ok=True)
            raise CheckpointError(f"{path}: cannot be written: {error}") from error
        self._files[client] = path
        self._unsynced.add(path)

    def _place(self) -> Path:
        if self.directory is None:
            raise InputError("directory: this store has none and lives in memory alone")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.directory}: cannot be made: {error}") from error
        return self.directory


def _unused(directory: Path, stem: str) -> Path:
    """Return a new name: a run resumed from an earlier round replaces no later one's file."""
    names = (directory / f"{stem}-{version}.safetensors" for version in count())
    return next(path for path in names if not path.exists())


def _read(path: Path, client: int) -> tuple[ClientState, int]:
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read, truncated or foreign: {error}") from error
    if about.get("client") != str(client) or "round" not in about:
        raise CheckpointError(
            f"{path}: expected a state of client {client}, found {about.get('client')!r}"
        )
    return state, int(about["round"])


def _size(state: ClientState) -> int:
    return sum(kept.numel() * kept.element_size() for kept in state.values())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
