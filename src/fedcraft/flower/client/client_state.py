"""The states that a client keeps between rounds, in Flower's context or in a directory.

A reply may not count: it arrives late, or the server dies and resumes from an earlier round. So a
state is stored with the round that made it, the server names the client's last reply that counted,
and the client continues from there. A state is dropped as soon as neither the run nor a checkpoint
of it needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context

from fedcraft.atomic import sweep, write_atomically
from fedcraft.errors import CheckpointError, InputError
from fedcraft.flower.messages.arrays import copy_tensors
from fedcraft.local import ClientState
from fedcraft.local.store import read_state, state_file

_RECORD = "fedcraft-state-"


class StatesByRound(MutableMapping[int, ClientState]):
    """The states of one client in one run, by the round that made them."""

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def keep(self, round: int, state: ClientState, *, needed: Iterable[int]) -> None:
        """Keep the state that ``round`` made and those still ``needed``; drop all others."""
        self[round] = state
        for stale in set(self) - {round, *needed}:
            del self[stale]


class ContextStates(StatesByRound):
    """States in ``context.state``, which end with the SuperNode or the run."""

    def __init__(self, context: Context) -> None:
        self._records = context.state.array_records

    def __iter__(self) -> Iterator[int]:
        names = [name for name in self._records if name.startswith(_RECORD)]
        return (int(name.removeprefix(_RECORD)) for name in names)

    def __getitem__(self, round: int) -> ClientState:
        return copy_tensors(self._records[f"{_RECORD}{round}"])

    def __setitem__(self, round: int, state: ClientState) -> None:
        arrays = {name: Array(kept.detach().cpu().numpy()) for name, kept in state.items()}
        self._records[f"{_RECORD}{round}"] = ArrayRecord(arrays)

    def __delitem__(self, round: int) -> None:
        del self._records[f"{_RECORD}{round}"]


class DirectoryStates(StatesByRound):
    """States in ``directory/run/client``, which outlive the SuperNode, the SuperLink and the run.

    Every file is written under another name, forced to the disk and renamed, and its name holds a
    digest of its content: a damaged file is an error. The states of earlier runs are not touched:
    their directories can be deleted at any time.
    """

    def __init__(self, directory: str | Path, run: str, client: int) -> None:
        if not run.isalnum():
            raise InputError(f"run: expected letters and digits, found {run!r}")
        self._place = Path(directory) / run / f"client-{client:07d}"

    def _files(self) -> dict[int, Path]:
        found = sorted(self._place.glob("round-*.safetensors"))
        return {int(path.stem.split("-")[1]): path for path in found}

    def __iter__(self) -> Iterator[int]:
        return iter(self._files())

    def __getitem__(self, round: int) -> ClientState:
        try:
            return read_state(self._files()[round])
        except CheckpointError as error:
            advice = "Delete the file to let the client start without its state"
            raise CheckpointError(f"{error}. {advice}") from error

    def __setitem__(self, round: int, state: ClientState) -> None:
        self._place.mkdir(parents=True, exist_ok=True)
        path, content = state_file(self._place, f"round-{round:07d}", state)
        before = self._files().get(round, path)
        sweep(self._place)
        write_atomically(path, content)
        if before != path:
            before.unlink()

    def __delitem__(self, round: int) -> None:
        self._files()[round].unlink()
