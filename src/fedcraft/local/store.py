"""The states that clients keep between rounds: in memory up to a budget, on disk above it.

A state on disk is one safetensors file, named after its client, its round and the SHA-256 of its
content. It is written under a temporary name, renamed, and never changed afterwards. A checkpoint
is then an index, client -> file: only the clients that changed since the last one are written, two
checkpoints share the files of all others, and a process that is killed leaves only files that no
index names.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load, save

from fedcraft.atomic import sha256_of, sync, write_atomically
from fedcraft.errors import CheckpointError, InputError, require
from fedcraft.local.objective import ClientState

_DIGEST = re.compile(r"-([0-9a-f]{16})\.safetensors")
StateIndex = dict[str, list[str | int]]  # client -> [file name, size in bytes]: plain JSON


class _Entry(NamedTuple):
    state: ClientState
    round: int

    @property
    def size(self) -> int:
        return sum(kept.numel() * kept.element_size() for kept in self.state.values())


class ClientStates:
    """The states of all clients by id.

    ``directory`` holds the files; without one everything stays in memory and cannot be saved.
    Above ``memory_mb`` the states unused for longest leave memory. Reading one back reads its file
    and checks its hash; nothing is ever pickled. States are shared, not copied: do not change
    them.
    """

    def __init__(self, directory: str | Path | None = None, *, memory_mb: float = 1024.0) -> None:
        require(memory_mb >= 0, "memory_mb", "a number >= 0", memory_mb)
        self.directory = None if directory is None else Path(directory)
        self.budget = memory_mb * 2**20
        self._memory: OrderedDict[int, _Entry] = OrderedDict()
        self._files: dict[int, Path] = {}
        self._unsynced: set[Path] = set()
        self.memory_bytes = 0

    def ids(self) -> list[int]:
        """Return the clients that have a state, in order."""
        return sorted(self._memory.keys() | self._files.keys())

    def get(self, client: int) -> ClientState | None:
        """Return a client's state, or None if it has none."""
        if client in self._memory:
            self._memory.move_to_end(client)
            return self._memory[client].state
        if client not in self._files:
            return None
        path = self._files[client]
        if not path.name.startswith(f"client-{client:07d}-"):
            raise CheckpointError(f"{path}: expected a state of client {client}")
        state = read_state(path)
        self._remember(client, _Entry(state, 0))  # its file stays, so the round is not needed
        return state

    def put(self, client: int, state: ClientState, round: int) -> None:
        """Keep ``state`` for ``client`` from ``round`` on, in place of its earlier state."""
        self._files.pop(client, None)  # the file stays: a checkpoint may name it
        self._remember(client, _Entry(state, round))

    def save(self) -> StateIndex:
        """Write every state to disk and return the index that :meth:`load` takes.

        When this returns, the files survive a power cut. Store the index atomically.
        """
        for client, entry in self._memory.items():
            if client not in self._files:
                self._write(client, entry)
        for path in sorted(self._unsynced):
            sync(path)
        if self._unsynced:
            sync(self._place())
        self._unsynced.clear()
        return {str(c): [p.name, p.stat().st_size] for c, p in sorted(self._files.items())}

    def load(self, index: Mapping[str, Iterable[str | int]]) -> None:
        """Continue from a saved index: present states are forgotten, and none is read yet.

        A file that is missing or has changed since it was saved is an error at once.
        """
        files = {}
        for client, (name, size) in index.items():
            path = self._place() / str(name)
            wrong = _problem(path, size)
            if wrong:
                raise CheckpointError(
                    f"{path}: {wrong}; the state of client {client} is lost, resume from an "
                    "earlier checkpoint"
                )
            files[int(client)] = path
        self._memory.clear()
        self._unsynced.clear()
        self._files, self.memory_bytes = files, 0

    def prune(self, kept: Iterable[Mapping[str, Iterable[str | int]]]) -> int:
        """Delete every file that neither this store nor an index in ``kept`` needs; count them."""
        if self.directory is None or not self.directory.is_dir():
            return 0
        needed = {path.name for path in self._files.values()}
        for index in kept:
            needed |= {str(next(iter(entry))) for entry in index.values()}
        found = [path for path in self.directory.iterdir() if "client-" in path.name]
        stale = [path for path in found if path.name not in needed]
        for path in stale:
            path.unlink()
        return len(stale)

    def _remember(self, client: int, entry: _Entry) -> None:
        if client in self._memory:
            self.memory_bytes -= self._memory.pop(client).size
        self._memory[client] = entry
        self.memory_bytes += entry.size
        while self.memory_bytes > self.budget and self.directory is not None and self._memory:
            oldest, stored = next(iter(self._memory.items()))
            if oldest not in self._files:
                self._write(oldest, stored)
            self.memory_bytes -= self._memory.pop(oldest).size

    def _write(self, client: int, entry: _Entry) -> None:
        name = f"client-{client:07d}-round-{entry.round:07d}"
        path, content = state_file(self._place(), name, entry.state)
        try:
            # A resumed run may compute a state again that a checkpoint names: that file stays.
            if not path.exists() or _is_damaged(path, sha256_of(path)):
                write_atomically(path, content, durable=False)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written: {error}") from error
        self._files[client] = path
        self._unsynced.add(path)

    def _place(self) -> Path:
        if self.directory is None:
            raise InputError("directory: this store has none and keeps states in memory only")
        try:
            self.directory.mkdir(exist_ok=True)  # not its parents: a run may have been deleted
        except OSError as error:
            raise CheckpointError(f"{self.directory}: cannot be made: {error}") from error
        return self.directory


def state_file(folder: Path, name: str, state: ClientState) -> tuple[Path, bytes]:
    """Return the file of a state, whose name ends in a digest of the content, and the content."""
    content = save({key: kept.detach().cpu().contiguous() for key, kept in state.items()})
    return folder / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}.safetensors", content


def read_state(path: Path) -> ClientState:
    """Return the state in a file, whose content must be what was saved."""
    try:
        content = path.read_bytes()
        if _is_damaged(path, hashlib.sha256(content).hexdigest()):
            raise ValueError("its content is not what was saved")
        # Fresh memory, aligned as torch aligns its own: the bits of a product can depend on it.
        return {name: tensor.clone() for name, tensor in load(content).items()}
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _problem(path: Path, size: str | int) -> str:
    """Return what is wrong with a file of a saved state; nothing if it is as it was saved."""
    try:
        found = path.stat().st_size
        if found != size:
            return f"expected {size} bytes, found {found}"
        damaged = _is_damaged(path, sha256_of(path))
    except FileNotFoundError:
        return f"expected {size} bytes, found no file"
    return "its content is not what was saved" if damaged else ""


def _is_damaged(path: Path, digest: str) -> bool:
    """Compare a digest with the one in the file's name; fedcraft 0.1.0 wrote none."""
    named = _DIGEST.search(path.name)
    return named is not None and named[1] != digest[:16]
