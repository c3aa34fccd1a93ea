"""Checks whole run directories, or accepts their files in their present state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fedcraft.errors import CheckpointError, DataError
from fedcraft.local.store import ClientStates
from fedcraft.runs.checkpoint import Checkpoints
from fedcraft.runs.directory import CONFIG_FILE, LOG_FILE, MODEL_FILE, TABLES, table_size
from fedcraft.runs.lock import Lock
from fedcraft.runs.seal import SEAL_FILE, STATUS_FILE, Digest, Seal, SealWriter

_FILES = (
    CONFIG_FILE, STATUS_FILE, MODEL_FILE, "environment.json", "resumed.json", "privacy.json",
    "split.npz", "labels.csv", "owners.csv", "classes.csv",
)  # fmt: skip
_ATTEMPTS = 5


class Damage(NamedTuple):
    """A file of a run that is not what the run wrote, and what is wrong with it."""

    file: str
    problem: str


def run_directories(folder: Path) -> list[Path]:
    """Return every run directory in or below a folder, also those that lost some files."""
    if not folder.is_dir():
        raise DataError(f"{folder} should be a folder with runs, but it does not exist")
    marks = (CONFIG_FILE, STATUS_FILE, SEAL_FILE)
    return sorted({path.parent for mark in marks for path in folder.rglob(mark)})


def is_sealed(directory: Path) -> bool:
    """Tell whether a run has a seal; those of early versions have none."""
    return (directory / SEAL_FILE).exists()


def check(directory: Path) -> list[Damage]:
    """Return what is damaged in a run directory, checkpoints and client states included.

    In a run without a seal, only the checkpoints can be checked.
    """
    for _ in range(_ATTEMPTS):
        seal = Seal.parse(directory)
        found = _check(seal)
        if not found or Seal.parse(directory).text == seal.text:
            break  # otherwise a process is writing: look again
    return found


def _check(seal: Seal) -> list[Damage]:
    if seal.damage:
        return [Damage(SEAL_FILE, seal.damage)]
    found = [Damage(name, seal.problem(name)) for name in (*seal.files, *seal.rows)]
    damaged = [damage for damage in found if damage.problem]
    return damaged + _check_checkpoints(seal, last=None if damaged else _last(seal))


def unconfirmed(directory: Path) -> dict[str, int]:
    """Return the tables that end in rows that were never confirmed, with the bytes of these rows.

    A process that is killed leaves them; readers do not count them, and a resumed run writes them
    again.
    """
    seal = Seal.load(directory)
    return {name: size for name in seal.rows if (size := seal.tail(name))}


def _last(seal: Seal) -> int | None:
    """Return the last checkpoint of a run that still needs it."""
    with suppress(OSError, ValueError, AttributeError):
        status = json.loads(seal.read(STATUS_FILE))
        if status.get("state") != "finished" and status.get("checkpoint", -1) > 0:
            return int(status["checkpoint"])
    return None


def _check_checkpoints(seal: Seal, last: int | None) -> list[Damage]:
    checkpoints = Checkpoints(seal.directory / "checkpoints")
    found = []
    for number in sorted({*checkpoints.rounds(), *filter(None, [last])}):
        try:
            state = checkpoints.read(number)
            ClientStates(seal.directory / "states").load(state.get("clients", {}))
            _require_confirmed(seal, state.get("tables", {}))
        except CheckpointError as error:
            rounds = checkpoints.rounds()
            if number not in rounds and max(rounds, default=-1) > number:
                continue  # the run has just deleted it
            found.append(Damage(f"checkpoints/{checkpoints.path(number).name}", f"({error})"))
    return found


def _require_confirmed(seal: Seal, tables: Mapping[str, Any]) -> None:
    """Raise ``CheckpointError`` if a checkpoint knows more rows than the seal confirms."""
    for name, known in tables.items():
        sealed = seal.rows.get(TABLES[name])
        if sealed is not None and sealed.size < table_size(known):
            raise CheckpointError(
                f"it counts {table_size(known)} bytes of {TABLES[name]}, {SEAL_FILE} only "
                f"{sealed.size}"
            )


def accept(directory: Path) -> None:
    """Seal all files of a run in their present state, after they were changed on purpose."""
    lock = Lock(directory)
    try:
        (directory / SEAL_FILE).unlink(missing_ok=True)
        seal = SealWriter(directory, Seal(directory))
        seal.accept({name: Digest.of(text) for name, text in _contents(directory, _FILES)})
        tables = dict(_contents(directory, (*TABLES.values(), LOG_FILE)))
        rows = {name: text[: text.rfind(b"\n") + 1] for name, text in tables.items()}
        seal.rows({name: Digest.of(text) for name, text in rows.items()})
        if rows == tables:
            seal.shut()
        seal.close()
    finally:
        lock.release()


def _contents(directory: Path, names: Iterable[str]) -> list[tuple[str, bytes]]:
    there = [name for name in names if (directory / name).is_file()]
    return [(name, (directory / name).read_bytes()) for name in there]
