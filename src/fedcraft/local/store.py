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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load, save

from fedcraft.atomic import sha256_of, sync, write_atomically
from fedcraft.errors import CheckpointError, InputError, require
from fedcraft.local.objective import ClientState

__all__ = ["ClientStates", "StateIndex"]

_DIGITS = 16  # of a SHA-256, in a file's name
_NAME = re.compile(r"client-(?P<client>\d+)-round-(?P<round>\d+)-(?P<digest>\w+)\.safetensors")
StateIndex = dict[str, list[str | int]]  # client -> [file name, size in bytes]: plain JSON


class _Entry(NamedTuple):
    state: ClientState
    round: int
    size: int


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
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.ids())

    def __contains__(self, client: object) -> bool:
        return client in self._memory or client in self._files

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids())

    def ids(self) -> list[int]:
        """Return the clients that have a state, in order."""
        return sorted(self._memory.keys() | self._files.keys())

    @property
    def memory_bytes(self) -> int:
        """Bytes of the states now in memory."""
        return self._bytes

    def get(self, client: int) -> ClientState | None:
        """Return a client's state, or None if it has none."""
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
        """Keep ``state`` for ``client`` from ``round`` on, in place of its earlier state."""
        self._files.pop(client, None)  # the file stays: a checkpoint may name it
        self._remember(client, _Entry(state, round, _size(state)))

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
            found = path.stat().st_size if path.is_file() else None
            wrong = ""
            if found != size:
                wrong = f"expected {size} bytes, found {'no file' if found is None else found}"
            elif _is_damaged(path, sha256_of(path)):
                wrong = "its content is not what was saved"
            if wrong:
                raise CheckpointError(
                    f"{path}: {wrong}; the state of client {client} is lost, resume from an "
                    "earlier checkpoint"
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
        found = [path for path in self.directory.iterdir() if "client-" in path.name]
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
        tensors = {name: kept.detach().contiguous() for name, kept in entry.state.items()}
        content = save(tensors)
        digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
        path = self._place() / f"client-{client:07d}-round-{entry.round:07d}-{digest}.safetensors"
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


def _read(path: Path, client: int) -> tuple[ClientState, int]:
    named = _NAME.fullmatch(path.name)
    if named is None or int(named["client"]) != client:
        raise CheckpointError(f"{path}: expected a state of client {client}")
    try:
        content = path.read_bytes()
        if _is_damaged(path, hashlib.sha256(content).hexdigest()):
            raise ValueError("its content is not what was saved")
        # Fresh memory, aligned as torch aligns its own: the bits of a product can depend on it.
        state = {name: tensor.clone() for name, tensor in load(content).items()}
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    return state, int(named["round"])


def _is_damaged(path: Path, digest: str) -> bool:
    """Compare a digest with the one in the file's name; fedcraft 0.1.0 numbered files instead."""
    named = _NAME.fullmatch(path.name)
    return named is not None and len(named["digest"]) == _DIGITS and digest[:_DIGITS] != named[3]


def _size(state: ClientState) -> int:
    return sum(kept.numel() * kept.element_size() for kept in state.values())
